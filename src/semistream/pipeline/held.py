"""Rows that wait for their master row: durable, bounded, released when *their* key arrives.

A batch's held rows lie in Parquet files, one set for each lookup, with the key they wait for. When a batch reads a
newer version of that master, the keys that changed between the two versions are looked for among the held rows; those
that now match go through the pipeline again, once, with the batch. Rows that have waited too long, and the oldest ones
when they take too much room, leave too, marked: a lookup that misses them again does not hold them again.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semistream.errors import StateError
from semistream.lookup.run import make_join
from semistream.pipeline.columns import EXPIRED, HELD_TIME, SINCE, held_key
from semistream.pipeline.decision import Read, Segment
from semistream.stores import MasterStore

if TYPE_CHECKING:
    from semistream.pipeline.steps.lookup import Lookup

_ROW = "_held_row"
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Released:
    """Rows that go through the pipeline again, and what is left."""

    files: tuple[str, ...]
    rows: int
    left: tuple[Segment, ...]


class Held:
    """The held rows of a pipeline, as the last decision left them."""

    def __init__(self, segments: Iterable[Segment], lookups: Iterable[Lookup], columns: list[str]) -> None:
        self.segments = tuple(segments)
        self._lookups = {lookup.name: lookup for lookup in lookups if lookup.on_miss == "hold"}
        self._columns = columns

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return sum(segment.rows for segment in self.segments)

    def release(self, stores: dict[str, MasterStore], before: dict[str, Read], now: float, directory: Path) -> Released:
        """The rows that leave for the batch that reads ``stores``; files are written into ``directory``.

        ``before`` are the versions in which the held rows were looked for last. Rows that began to wait after ``now``,
        by a clock that was ahead, begin to wait now.
        """
        files: list[str] = []
        left: list[Segment] = []
        rows = 0
        crowded = self._crowded_out()
        for segment in self.segments:
            lookup = self._lookups.get(segment.master)
            if lookup is None:
                raise StateError(
                    f"{segment.rows:,} rows wait for {segment.master!r}, for which no lookup of the pipeline holds "
                    f"rows any more ({segment.path}); give the lookup back its name and on_miss='hold'"
                )
            old = now - lookup.hold_seconds
            store = stores[segment.master]
            known = before.get(segment.master)
            if segment not in crowded and old <= segment.oldest <= now and Read.of(store) == known:
                left.append(segment)
                continue
            table = read_rows(segment.path)
            if table.num_rows != segment.rows:
                raise StateError(f"{segment.path} holds {table.num_rows:,} rows instead of {segment.rows:,}: damaged")
            since = table.column(SINCE).to_numpy()
            ahead = since > now
            expired = (since < old) | (segment in crowded)
            leaving = expired | _arrived(table, lookup, store, known)
            if not leaving.any() and not ahead.any():
                left.append(segment)
                continue
            if ahead.any():
                since = np.minimum(since, now)
                table = table.set_column(table.column_names.index(SINCE), SINCE, pa.array(since))
            there = [name for name in self._columns if name in table.column_names]  # a new column is NULL
            out = table.select([*there, SINCE]).append_column(EXPIRED, pa.array(expired))
            if leaving.any():
                files.append(str(_written(out.filter(pa.array(leaving)), directory, "released")[0]))
                rows += int(leaving.sum())
            if not leaving.all():
                rest = table.filter(pa.array(~leaving))
                path, size = _written(rest, directory, "held")
                left.append(Segment(segment.master, str(path), rest.num_rows, size, float(since[~leaving].min())))
        return Released(tuple(files), rows, tuple(left))

    def due(self, newest: dict[str, Read], before: dict[str, Read], now: float) -> bool:
        """Whether rows may leave, though none came: a master they wait for has changed, or their time is up."""
        crowded = self._crowded_out()
        for segment in self.segments:
            lookup = self._lookups.get(segment.master)
            if lookup is None or segment in crowded or segment.oldest < now - lookup.hold_seconds:
                return True
            if newest[segment.master] != before.get(segment.master):
                return True
        return False

    def _crowded_out(self) -> set[Segment]:
        """The oldest segments of a lookup whose rows take more room than they may."""
        result = set()
        for name, lookup in self._lookups.items():
            mine = sorted((one for one in self.segments if one.master == name), key=lambda one: one.oldest)
            size = sum(one.bytes for one in mine)
            for one in mine:
                if size <= lookup.hold_bytes:
                    break
                result.add(one)
                size -= one.bytes
        return result


def _arrived(table: pa.Table, lookup: Lookup, store: MasterStore, before: Read | None) -> Flags:
    """Which rows have a match in this version; only those whose key has changed are looked up.

    Of a store that was removed and built again, every key may have changed.
    """
    names = [held_key(number) for number in range(len(lookup.on))]
    found = np.zeros(table.num_rows, np.bool_)
    if store.rows == 0 or Read.of(store) == before:
        return found
    on = dict(zip(names, lookup.on.values(), strict=True))
    ordered = store.codec.stream_columns(on)
    codes, valid = store.codec.encode([table.column(name).combine_chunks() for name in ordered])
    same = before is not None and before.store == store.manifest.store_id
    changed = store.changed_since(before.number) if before is not None and same else None
    candidates = valid if changed is None else valid & np.isin(codes, changed)
    if not candidates.any():
        return found
    wanted = [*names, HELD_TIME] if lookup.as_of is not None else names
    asked = table.select(wanted).append_column(_ROW, pa.array(np.arange(table.num_rows)))
    asked = asked.filter(pa.array(candidates)).combine_chunks()
    more: dict[str, Any] = (
        {}
        if lookup.as_of is None
        else {"as_of": HELD_TIME, "valid_from": lookup.valid_from, "valid_to": lookup.valid_to}
    )
    join = make_join(asked.schema, store, on=on, how="semi", memory="64MB", **more)
    for batch in join.join(asked.to_batches()):
        found[batch.column(_ROW).to_numpy()] = True
    return found


def read_rows(path: str, columns: list[str] | None = None) -> pa.Table:
    """The rows of a file that the pipeline keeps; one that is gone or damaged is an error that names it."""
    try:
        return pq.read_table(path, columns=columns, partitioning=None, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise StateError(f"{path} cannot be read ({error}), and a batch needs it; restore it") from error


def _written(table: pa.Table, directory: Path, kind: str) -> tuple[Path, int]:
    path = directory / f"{kind}-{uuid.uuid4().hex[:12]}.parquet"
    with path.open("xb") as file:
        pq.write_table(table, file, write_page_checksum=True)
        file.flush()
        os.fsync(file.fileno())
        return path, file.tell()


def new_segment(master: str, path: str, rows: int, size: int) -> Segment:
    """A file of held rows that a task wrote."""
    oldest = pc.min(read_rows(path, [SINCE]).column(SINCE)).as_py()
    return Segment(master, path, rows, size, float(oldest))
