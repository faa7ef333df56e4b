"""The driver that tests kill: runs the shop's pipeline once over what has arrived.

Usage: driver.py ROOT [SECONDS | reconcile]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from semistream.pipeline import ledger
from semistream.spark.session import local_session
from tests.pipeline.faults import plant
from tests.pipeline.shop import TOO_FAST, Shop

MASTER = "SHOP_MASTER"  # the address of a cluster; without it, this process

if __name__ == "__main__":
    plant()
    # Nothing is forgotten, so that the verifier can go through the whole history.
    ledger.KEPT = 1_000_000
    session = local_session(
        "shop",
        os.environ.get(MASTER, "local[2]"),
        spark__sql__streaming__minBatchesToRetain="1000000",
        spark__sql__streaming__fileSource__log__deletion="false",
    )
    session.sparkContext.setLogLevel("OFF")
    shop = Shop(Path(sys.argv[1]))
    if sys.argv[2:] == ["reconcile"]:
        shop.pipeline(shed=TOO_FAST).reconcile(session)
    elif len(sys.argv) > 2:  # until it is killed, or so many seconds have passed
        running = shop.pipeline().start(session)
        running.wait(float(sys.argv[2]))
        running.stop()
    else:
        shop.pipeline().run(session, once=True)
