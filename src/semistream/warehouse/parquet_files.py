"""Rows of one Parquet file of a warehouse, checked against what its manifest says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semistream.warehouse import SinkError
from semistream.warehouse.contract import StagedFile, staged_path


def read_file(root: Path, file: StagedFile, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
    """The rows of a file in the table's columns; one that the file is older than is NULL."""
    path = staged_path(root, file)
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    try:
        found = pq.read_table(path, columns=columns, partitioning=None, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise SinkError(f"{path} is damaged: {error}") from error
    if found.num_rows != file.rows:
        raise SinkError(f"{path} is damaged: it has {found.num_rows} rows, and had {file.rows} when it was written")
    there = set(found.column_names)
    arrays = [
        found.column(field.name).cast(field.type) if field.name in there else pa.nulls(file.rows, field.type)
        for field in wanted
    ]
    return pa.table(arrays, schema=wanted)


def absent(rows: pa.Table, keys: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each row whether its key is none of ``keys``."""
    numbered = rows.append_column("__row", pa.array(np.arange(rows.num_rows)))
    left = numbered.join(keys, keys.column_names, join_type="left anti", use_threads=False)
    stays = np.zeros(rows.num_rows, np.bool_)
    stays[left.column("__row").to_numpy()] = True
    return stays
