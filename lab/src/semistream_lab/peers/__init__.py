"""What somebody could take instead of semistream, measured beside it: one file a peer, and one line here.

A peer's module has `PEER`. Most are an arm of `arms_core`, in this process; others run programs of their own. All get
the same stream, and their rows must be the same.
"""

from __future__ import annotations

import importlib

from semistream.errors import choose
from semistream_lab.peers.contract import Peer

PEERS = {
    "semistream": "ours",
    "duckdb": "duckdb_table",
    "sqlite": "sqlite",
    "lmdb": "lmdb",
    "rocksdb": "rocksdb",
    "flink": "flink",
}


def peer(name: str) -> Peer:
    """The peer of a name."""
    module = PEERS[choose("peers", name, tuple(PEERS))]
    found: Peer = importlib.import_module(f"semistream_lab.peers.{module}").PEER
    return found
