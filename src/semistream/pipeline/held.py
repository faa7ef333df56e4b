"""Rows that wait for their master row: durable, bounded, released when *their* key arrives.

They lie in Parquet files, each for one lookup, with the key they wait for. When a batch reads a newer version of the
master, those whose key has changed are looked up, and those that match go through the pipeline again, once. Rows that
have waited too long or take too much room leave too, marked: a lookup that misses them does not hold them again.
"""

import math
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semistream.budget import Budget, parse_bytes
from semistream.errors import MemoryBudgetError, StateError
from semistream.lookup.run import make_join
from semistream.pipeline.decision import HeldFile, Read
from semistream.pipeline.routes import EXPIRED, HELD_TIME, SINCE, held_key
from semistream.pipeline.staging import ParquetDraft
from semistream.pipeline.steps.lookup import Lookup
from semistream.stores import MasterStore
from semistream.stores.paged.lookups import among
from semistream.warehouse.contract import StagedFile

_ROW = "_held_row"
_ROWS = 1024  # that are read from a file at once, at most: in memory they may be more than on the disk
PIECES = 16  # a piece of rows takes such a part of the memory
COPIES = 4  # of a piece that are made while it is used
Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Released:
    """Rows that go through the pipeline again, and what is left."""

    files: tuple[str, ...]
    rows: int
    left: tuple[HeldFile, ...]


class Held:
    """The held rows of a pipeline, as the last decision left them."""

    def __init__(
        self, segments: Iterable[HeldFile], lookups: Iterable[Lookup], columns: list[str], budget: Budget
    ) -> None:
        """``columns`` go through the pipeline again; all that is read at once takes grants of the ``budget``."""
        self.segments = tuple(segments)
        self._lookups = {lookup.name: lookup for lookup in lookups if lookup.on_miss == "hold"}
        self._columns = columns
        self._budget = budget

    def release(self, stores: dict[str, MasterStore], before: dict[str, Read], now: float, directory: Path) -> Released:
        """The rows that leave for the batch that reads ``stores``, in new files; the one before has read ``before``."""
        left: list[HeldFile] = []
        out: list[StagedFile] = []
        crowded = self._crowded_out()
        budget = self._budget
        for segment in self.segments:
            lookup = self._lookups.get(segment.master)
            if lookup is None:
                raise StateError(
                    f"{segment.rows:,} rows wait for {segment.master!r}, for which no lookup of the pipeline holds "
                    f"rows any more ({segment.path}); give the lookup back its name and on_miss='hold'"
                )
            old = math.inf if segment in crowded else now - lookup.hold_seconds
            store, known = stores[segment.master], before.get(segment.master)
            if old <= segment.oldest <= now and Read.of(store) == known:
                left.append(segment)
                continue
            budget.require("marks on held rows", segment.rows // 8)
            arrived = _Arrived(lookup, store, known, budget)
            marks: list[Bits] = []  # on those that leave, piece by piece
            changes = False
            for table in read_granted([segment.path], budget, rows=segment.rows):  # all columns: damage is found early
                since = table.column(SINCE).to_numpy()
                leaving = (since < old) | arrived.among(table)
                changes |= bool((leaving | (since > now)).any())  # after a clock that was ahead they begin to wait now
                marks.append(np.packbits(leaving))
            if changes:
                again = read_granted([segment.path], budget, rows=segment.rows)
                released, held = self._split(again, marks, old, now, directory)
                out += released
                left += [new_held_file(segment.master, file) for file in held]
            else:
                left.append(segment)
            budget.release("marks on held rows")
            budget.release("keys that changed")
        return Released(tuple(file.path for file in out), sum(file.rows for file in out), tuple(left))

    def _split(
        self, pieces: Iterable[pa.Table], marks: Iterable[Bits], old: float, now: float, directory: Path
    ) -> list[list[StagedFile]]:
        """Write down who goes and who stays: a file of each, if there are such."""
        drafts: dict[str, ParquetDraft] = {}
        for table, mark in zip(pieces, marks, strict=True):
            leaving = np.unpackbits(mark, count=table.num_rows).astype(np.bool_)
            since = np.minimum(table.column(SINCE).to_numpy(), now)
            table = table.set_column(table.column_names.index(SINCE), SINCE, pa.array(since))
            there = [name for name in self._columns if name in table.column_names]  # a new column is NULL
            going = table.select([*there, SINCE]).append_column(EXPIRED, pa.array(since < old))
            for kind, rows in (("released", going.filter(leaving)), ("held", table.filter(~leaving))):
                if rows.num_rows and kind not in drafts:
                    path = directory / f"{kind}-{uuid.uuid4().hex[:12]}.parquet"
                    drafts[kind] = ParquetDraft(path, rows.schema)
                if rows.num_rows:
                    drafts[kind].write(rows)
        return [[drafts[kind].finish()] if kind in drafts else [] for kind in ("released", "held")]

    def due(self, newest: dict[str, Read], before: dict[str, Read], now: float) -> bool:
        """Whether rows may leave, though none came: a master they wait for has changed, or their time is up."""
        crowded = self._crowded_out()
        for segment in self.segments:
            lookup = self._lookups.get(segment.master)
            if lookup is None or segment in crowded or segment.oldest < now - lookup.hold_seconds:
                return True
        return any(newest[one.master] != before.get(one.master) for one in self.segments)

    def _crowded_out(self) -> set[HeldFile]:
        """The oldest segments of a lookup whose rows take more room than they may."""
        result = set()
        for name, lookup in self._lookups.items():
            mine = sorted((one for one in self.segments if one.master == name), key=lambda one: one.oldest)
            size = sum(one.bytes for one in mine)
            for one in mine:
                if size <= parse_bytes(lookup.hold_bytes):
                    break
                result.add(one)
                size -= one.bytes
        return result


class _Arrived:
    """Rows that have a match in this version of their master; only those whose key has changed are looked up."""

    def __init__(self, lookup: Lookup, store: MasterStore, before: Read | None, budget: Budget) -> None:
        self._lookup, self._store, self._budget = lookup, store, budget
        self._changed = None  # of a store that was built again or restored, every key may have changed
        if before is not None and before.is_part_of(store.manifest, store.path):
            self._changed = store.changed_since(before.number)
        if self._changed is not None and not budget.grant("keys that changed", self._changed.nbytes):
            self._changed = None  # too many to keep: every row is looked up

    def among(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        lookup, store = self._lookup, self._store
        found = np.zeros(table.num_rows, np.bool_)
        if store.rows == 0:
            return found
        on = {held_key(part): column for part, column in enumerate(lookup.keys.values())}
        ordered = store.codec.stream_columns(on)
        codes, valid = store.codec.encode([table.column(name).combine_chunks() for name in ordered])
        candidates = valid if self._changed is None else valid & among(codes, self._changed)
        if not candidates.any():
            return found
        wanted = [*on, HELD_TIME] if lookup.as_of is not None else [*on]
        asked = table.select(wanted).append_column(_ROW, pa.array(np.arange(table.num_rows)))
        asked = asked.filter(pa.array(candidates)).combine_chunks()
        try:
            join = make_join(
                asked.schema,
                store,
                on=on,
                how="semi",
                memory=self._budget.free,
                as_of=None if lookup.as_of is None else HELD_TIME,
                valid_from=lookup.valid_from,
                valid_to=lookup.valid_to,
            )
            for batch in join.join(asked.to_batches()):
                found[batch.column(_ROW).to_numpy()] = True
            self._budget.require("a lookup of held rows", join.stats.peak_bytes)
            self._budget.release("a lookup of held rows")
        except MemoryBudgetError:  # the tasks have more: they look these up, and hold again what misses
            return candidates
        return found


def read_granted(
    paths: Iterable[str], budget: Budget, columns: list[str] | None = None, rows: int | None = None
) -> Iterator[pa.Table]:
    """The rows of files in pieces, each granted by the budget, with the copies that are made while it is used."""
    part = "a piece of rows"
    try:
        for path in paths:
            for table in read_pieces(path, budget.total // PIECES, columns, rows):
                budget.release(part)
                budget.require(part, COPIES * table.nbytes)
                yield table
    finally:
        budget.release(part)


def read_pieces(
    path: str, most_bytes: int, columns: list[str] | None = None, rows: int | None = None
) -> Iterator[pa.Table]:
    """The rows of a file that the pipeline keeps, about so many bytes at once; ``rows`` are all that it must hold."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            about = file.metadata
            if rows is not None and about.num_rows != rows:
                raise StateError(f"{path} holds {about.num_rows:,} rows instead of {rows:,}: damaged")
            in_memory = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
            row_bytes = 1 + in_memory // max(1, about.num_rows)
            waiting: list[pa.RecordBatch] = []
            size = 0
            for batch in file.iter_batches(max(1, min(_ROWS, most_bytes // row_bytes)), columns=columns):
                waiting.append(batch)
                size += batch.nbytes
                if size >= most_bytes:
                    yield pa.Table.from_batches(waiting)
                    waiting, size = [], 0
            if waiting:
                yield pa.Table.from_batches(waiting)
    except (OSError, pa.ArrowException) as error:
        raise StateError(f"{path} cannot be read ({error}), and a batch needs it; restore it") from error


def new_held_file(master: str, file: StagedFile) -> HeldFile:
    oldest = min(pc.min(some.column(SINCE)).as_py() for some in read_pieces(file.path, 1 << 20, [SINCE]))
    return HeldFile(master, file.path, file.rows, file.bytes, float(oldest))
