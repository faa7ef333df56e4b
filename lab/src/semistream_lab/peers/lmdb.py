"""LMDB: a file that is mapped into memory, so that no budget binds it; many keys in one call."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream_lab.cells import Cell
from semistream_lab.data import BenchData
from semistream_lab.peers.codec import RowCodec, key_bytes
from semistream_lab.peers.contract import Keys, LookupArm, Peer, added_schema, in_process, needs_package, rows_of

_MOST_BYTES = 1 << 40  # of the map; it takes no more than its rows need


def prepare(data: BenchData, columns: str) -> Path:
    """The file, written in key order."""
    lmdb: Any = importlib.import_module("lmdb")
    name, codec = f"lmdb-{lmdb.__version__}-{columns}", RowCodec(added_schema(data, columns))
    with data.part(name) as draft:
        if draft is not None:
            with (
                lmdb.open(str(draft / "master"), map_size=_MOST_BYTES, sync=False) as store,
                store.begin(write=True) as writing,
            ):
                for batch in rows_of(data, columns):
                    keys = key_bytes(batch.column("key").to_numpy())
                    pairs = zip(keys, codec.encode(batch.columns[1:]), strict=True)
                    writing.cursor().putmulti(pairs, append=True)
    return data.directory / name / "master"


class LmdbArm(LookupArm):
    """One transaction that reads."""

    def __init__(self, cell: Cell, data: BenchData, schema: pa.Schema) -> None:
        super().__init__(cell, data, schema)
        lmdb: Any = importlib.import_module("lmdb")
        self._codec = RowCodec(self.added)
        path = prepare(data, cell.params["columns"])
        self._store = lmdb.open(str(path), readonly=True, lock=False, readahead=False, map_size=_MOST_BYTES)
        self._reading = self._store.begin()

    def get(self, keys: Keys) -> list[pa.Array]:
        """See `LookupArm.get`."""
        return self._codec.decode([value for _, value in self._reading.cursor().getmulti(key_bytes(keys))])


PEER = Peer(
    "LMDB, rows packed as values of a mapped file, all keys of a batch in one call; the map knows no budget",
    prepare,
    in_process(LmdbArm),
    needs_package("lmdb"),
)
