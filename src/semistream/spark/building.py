"""A store from a Spark DataFrame, sorted by Spark: each partition writes its own base segment, the driver publishes.

Partitions are ranges of codes, so the segments are disjoint and in key order, and the cluster bounds the master's size,
not the driver. The store's path must be visible to all.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from semistream.errors import ArgumentError, SchemaError
from semistream.keys import KeyCodec
from semistream.spark.frames import arrow_schema, quoted
from semistream.stores.paged.building import Build, Packer
from semistream.stores.paged.manifest import SegmentEntry
from semistream.stores.paged.segment import write_segment
from semistream.stores.paged.store import MasterStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CODE = "__semistream_code"
_SIGN = np.uint64(1 << 63)


def build(df: "DataFrame", asked: Build) -> MasterStore:
    """See `MasterStore.build`."""
    from pyspark.sql.types import LongType, StructField, StructType

    if df.isStreaming:
        raise ArgumentError(
            "a store is built from a batch DataFrame; this one is streaming (use upsert in foreachBatch)"
        )
    if asked.columns_to_read is not None:
        missing = [name for name in asked.columns_to_read if name not in df.columns]
        if missing:
            raise ArgumentError(f"the DataFrame has no column {missing[0]!r}; its columns are {df.columns}")
        df = df.select(*asked.columns_to_read)
    found, foreign = arrow_schema(df, "the DataFrame")
    for name, kind in foreign.items():
        raise SchemaError(
            f"column {name!r} of type {kind} cannot be stored; leave it out with columns=[...] or cast it"
        )
    packer, previous = asked.begin(found)
    packer.null_keys = df.where(" or ".join(f"{quoted(name)} is null" for name in asked.names)).count()
    asked.check_null_keys(packer.null_keys, "the rows")

    with_code = StructType([*df.schema.fields, StructField(_CODE, LongType())])
    root, page_bytes, names, codec = asked.root.resolve(), asked.page_bytes, asked.names, packer.codec
    coded = df.mapInArrow(lambda batches: _add_codes(batches, codec, names), with_code)
    kept = coded.where(f"{_CODE} is not null")
    ordered = kept.repartitionByRange(_CODE).sortWithinPartitions(_CODE)
    reports = ordered.mapInArrow(lambda batches: _write(batches, packer, root, page_bytes), "report string").collect()
    segments = sorted((json.loads(row["report"]) for row in reports), key=lambda report: report["first"])
    entries = [SegmentEntry(**report["entry"]) for report in segments]
    # Of an empty DataFrame: one empty base.
    return asked.publish(packer, entries or [write_segment(asked.root, packer.layout, asked.page_bytes, [])], previous)


def _add_codes(batches: Iterator[pa.RecordBatch], codec: KeyCodec, key: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        codes, valid = codec.encode([batch.column(name) for name in key])
        # Spark's longs are signed: with the sign bit turned, their order is that of the codes.
        column = pa.array((codes ^ _SIGN).view(np.int64), mask=~valid)
        yield pa.RecordBatch.from_arrays([*batch.columns, column], [*batch.schema.names, _CODE])


def _write(batches: Iterator[pa.RecordBatch], packer: Packer, path: Path, page_bytes: int) -> Iterator[pa.RecordBatch]:
    blocks = (packer.pack(batch.drop_columns([_CODE])) for batch in batches if batch.num_rows)
    block = next(blocks, None)
    if block is not None:
        first = int(block.codes[0])
        entry = write_segment(path, packer.layout, page_bytes, chain([block], blocks))
        yield pa.RecordBatch.from_pydict({"report": [json.dumps({"first": first, "entry": asdict(entry)})]})
