"""RocksDB, by `rocksdict`: its block cache is the budget, filters for whole keys, many keys in one call."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream_lab.cells import Cell
from semistream_lab.data import BenchData
from semistream_lab.peers.codec import RowCodec, key_bytes
from semistream_lab.peers.contract import Keys, LookupArm, Peer, added_schema, in_process, needs_package, rows_of

_FILTER_BITS = 10.0


def prepare(data: BenchData, columns: str) -> Path:
    """The database, compacted."""
    rocksdict: Any = importlib.import_module("rocksdict")
    name, codec = f"rocksdb-{version('rocksdict')}-{columns}", RowCodec(added_schema(data, columns))
    with data.part(name) as draft:
        if draft is not None:
            database = rocksdict.Rdict(str(draft / "master"), _options(rocksdict, 64 << 20))
            for batch in rows_of(data, columns):
                keys = key_bytes(batch.column("key").to_numpy())
                writes = rocksdict.WriteBatch(raw_mode=True)
                for key, value in zip(keys, codec.encode(batch.columns[1:]), strict=True):
                    writes.put(key, value)
                database.write(writes)
            database.flush()
            database.compact_range(None, None)
            database.close()
    return data.directory / name / "master"


def _options(rocksdict: Any, cache_bytes: int) -> Any:
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(cache_bytes))
    blocks.set_bloom_filter(_FILTER_BITS, False)
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    return options


class RocksdbArm(LookupArm):
    """One database, read only."""

    def __init__(self, cell: Cell, data: BenchData, schema: pa.Schema) -> None:
        super().__init__(cell, data, schema)
        rocksdict: Any = importlib.import_module("rocksdict")
        self._codec = RowCodec(self.added)
        path, options = prepare(data, cell.params["columns"]), _options(rocksdict, self.budget)
        self._database = rocksdict.Rdict(str(path), options, access_type=rocksdict.AccessType.read_only())

    def get(self, keys: Keys) -> list[pa.Array]:
        """See `LookupArm.get`."""
        return self._codec.decode(self._database.get(key_bytes(keys)))


PEER = Peer(
    "RocksDB, rows packed as values, all keys of a batch in one call; its block cache is the budget",
    prepare,
    in_process(RocksdbArm),
    needs_package("rocksdict"),
)
