"""The driver that tests kill: runs the shop's pipeline once over what has arrived. Usage: driver.py ROOT [SECONDS]."""

from __future__ import annotations

import sys
from pathlib import Path

from semistream.spark.session import local_session
from tests.pipeline.shop import Shop

if __name__ == "__main__":
    session = local_session("shop", "local[2]")
    session.sparkContext.setLogLevel("OFF")
    shop = Shop(Path(sys.argv[1]))
    if len(sys.argv) > 2:  # until it is killed, or so many seconds have passed
        running = shop.pipeline().start(session)
        running.wait(float(sys.argv[2]))
        running.stop()
    else:
        shop.pipeline().run(session, once=True)
