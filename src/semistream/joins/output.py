"""Making output: stream rows beside master rows, for every ``how``, in bounded pieces.

`matching` is the one place where it is decided which pairs of a stream row and a master row with equal codes are
matches. The real keys must be equal where the codes are hashes, the master's row must have been valid at the stream
row's moment (`semistream.as_of`), and ``multiple`` says what becomes of a stream row with more than one match.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import FanOutError, InvariantError
from semistream.keys import Codes, Mask
from semistream.lookup.bind import MATCHED, UNMATCHED, LookupPlan
from semistream.rows import Addresses, Projection, RowLayout, own_bytes, readable, text_sizes, varies
from semistream.stats import Stats
from semistream.stores.contract import portions

Indices = npt.NDArray[np.int64]
MOST_ROWS = 1 << 16
MOST_BYTES = 3 << 20  # of text in a piece


class Output:
    """Builds the batches that leave a join and counts what became of each stream row."""

    def __init__(
        self, plan: LookupPlan, layout: RowLayout, stats: Stats, limits: tuple[int, int], *, unique: bool = False
    ) -> None:
        """``limits``: rows of a piece, and bytes of its text. ``unique``: has the master at most one row per key?"""
        self.plan = plan
        self.layout = layout
        self.stats = stats
        self.most_rows, self.most_bytes = limits
        self._needed = Projection(layout, plan.needed)
        self._texts = [at for at, field in enumerate(plan.stream) if varies(field.type)]
        self.wants_rows = plan.how in ("left", "inner")
        # Rows with equal codes are matches, and all of them are wanted.
        once = plan.multiple == "error" or (plan.multiple == "first" and self.wants_rows)
        self.sure = not plan.compares and (unique or not once)
        self.fixed = self._needed.target.fixed and not self._texts  # do all rows of output take the same?
        self._at = [-1 if plan.is_code(name) else layout.schema.get_field_index(name) for name in plan.columns]
        self.unmatched_sample: list[object] = []

    def of_layout(self, layout: RowLayout) -> "Output":
        """The same for rows of another layout; both share one sample of unmatched keys."""
        other = Output(self.plan, layout, self.stats, (self.most_rows, self.most_bytes))
        other.unmatched_sample = self.unmatched_sample
        return other

    def pairs(self, stream: pa.RecordBatch, left: Indices | None, codes: Codes, rows: Addresses) -> pa.RecordBatch:
        """Stream rows (all of them, or by index) beside master rows; address 0 gives nulls."""
        if not self.wants_rows:  # a semi or anti join has no columns to add, so that pairs would look like its rows
            raise InvariantError(f"how={self.plan.how!r} gives out no pairs, yet {len(rows)} were made")
        taken = stream.columns if left is None else stream.take(pa.array(left)).columns
        added = [self._decode(codes, rows) if at < 0 else self.layout.unpack(rows, at) for at in self._at]
        absent = rows == 0 if self.plan.defaults or self.plan.status is not None else None
        if absent is not None and absent.any():
            for name, value in self.plan.defaults.items():
                at = self.plan.names.index(name)
                added[at] = pa.compute.if_else(pa.array(absent), pa.scalar(value, added[at].type), added[at])
        if absent is not None and self.plan.status is not None:
            added.append(status_column(~absent))
        self.stats.rows_out += len(rows)
        return pa.RecordBatch.from_arrays([*taken, *added], schema=self.plan.output)

    def bounded_pairs(
        self, stream: pa.RecordBatch, left: Indices, codes: Codes, rows: Addresses
    ) -> Iterator[pa.RecordBatch]:
        """As `pairs`, in pieces."""
        for some in self.runs(stream, left, self._master_text(rows)):
            yield self.pairs(stream, left[some], codes[some], rows[some])

    def runs(self, stream: pa.RecordBatch, left: Indices, text: Indices | None = None) -> Iterator[slice]:
        """Stream rows, or pairs with so much of the master's ``text``, in runs within the limits, or of one row."""
        for start in range(0, len(left), self.most_rows):
            some = slice(start, min(start + self.most_rows, len(left)))
            if text is None and not self._texts:
                yield some
                continue
            sizes = self.stream_text(stream, left[some]) + (0 if text is None else text[some])
            for first, last in portions(sizes, self.most_bytes):
                yield slice(start + first, start + last)

    def stream_text(self, stream: pa.RecordBatch, rows: Indices) -> Indices:
        """Bytes of text in some rows of the stream."""
        return text_sizes([stream.column(at) for at in self._texts], rows)

    def _master_text(self, rows: Addresses) -> Indices | None:
        """Bytes of the master's rows; None where all have the same."""
        if self._needed.target.fixed:
            return None
        sizes, there = np.zeros(len(rows), np.int64), np.flatnonzero(rows)
        sizes[there] = self._needed.lengths(rows[there])
        return sizes

    def matches(
        self, stream: pa.RecordBatch, left: Indices, codes: Codes, rows: Addresses, matched: Mask
    ) -> Iterator[pa.RecordBatch]:
        """Of pairs with equal codes, mark the stream rows of matches in ``matched``; give out what ``how`` wants."""
        for some in self.runs(stream, left, self._master_text(rows)):
            of, their_codes, their_rows = left[some], codes[some], rows[some]
            if not self.sure:
                same = self.matching(stream, of, their_rows, matched[of])
                of, their_codes, their_rows = of[same], their_codes[same], their_rows[same]
            matched[of] = True
            if self.wants_rows and len(of):
                yield self.pairs(stream, of, their_codes, their_rows)

    def _decode(self, codes: Codes, rows: Addresses) -> pa.Array:
        keys = self.plan.codec.decode(codes)
        absent = rows == 0
        return pa.compute.if_else(pa.array(~absent), keys, pa.scalar(None, keys.type)) if absent.any() else keys

    def matching(self, stream: pa.RecordBatch, left: Indices, rows: Addresses, before: Mask) -> Mask:
        """Which pairs with equal codes are matches that count (see `matching`); only asked when not ``sure``."""
        at = self.layout.schema.get_field_index
        return matching(self.plan, stream, left, before, lambda name: self.layout.unpack(rows, at(name)))

    def settled(self, stream: pa.RecordBatch, matched: Mask) -> Iterator[pa.RecordBatch]:
        """All of these stream rows are decided now: count them, and give out what ``how`` wants beside the pairs."""
        self.count(stream, matched)
        yield from self.rest(stream, matched)

    def all_left(self, matched: Mask) -> bool:
        """Have all of these stream rows left with their matches? Then they are counted, and need not be settled."""
        if not self.wants_rows or not matched.all():
            return False
        self.stats.matched += len(matched)
        return True

    def count(self, stream: pa.RecordBatch, matched: Mask) -> None:
        """All of these stream rows are decided now."""
        hits = int(matched.sum())
        self.stats.matched += hits
        self.stats.unmatched += len(matched) - hits
        if hits < len(matched) and (more := 5 - len(self.unmatched_sample)) > 0:
            left = pa.array(np.flatnonzero(~matched)[:more])
            keys = [readable(stream.column(name).take(left)) for name in self.plan.matching_columns]
            self.unmatched_sample.extend(keys[0] if len(keys) == 1 else zip(*keys, strict=True))

    def rest(self, stream: pa.RecordBatch, matched: Mask) -> Iterator[pa.RecordBatch]:
        """What ``how`` wants beside the pairs."""
        how = self.plan.how
        if how == "inner":
            return
        left = np.flatnonzero(matched if how == "semi" else ~matched)
        for some in self.runs(stream, left):
            rows = stream.take(pa.array(left[some]))
            self.stats.rows_out += rows.num_rows
            yield self._without_match(rows) if how == "left" else rows

    def _without_match(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        given = [(self.plan.defaults.get(name), self.plan.output.field(name).type) for name in self.plan.names]
        added = [pa.repeat(pa.scalar(value, kind), rows.num_rows) for value, kind in given]
        if self.plan.status is not None:
            added.append(status_column(np.zeros(rows.num_rows, np.bool_)))
        return pa.RecordBatch.from_arrays([*rows.columns, *added], schema=self.plan.output)


def status_column(matched: Mask) -> pa.Array:
    if matched.all():
        return pa.repeat(pa.scalar(MATCHED), len(matched))
    return pa.compute.if_else(pa.array(matched), MATCHED, UNMATCHED)


def pieces(
    batch: pa.RecordBatch, most_rows: int, schema: pa.Schema, most_bytes: int | None = None
) -> Iterator[pa.RecordBatch]:
    """A batch in slices of at most ``most_rows`` and ``most_bytes``, or of one row, in the plan's schema."""
    if not batch.schema.equals(schema):
        batch = batch.cast(schema)
    for start in range(0, batch.num_rows, most_rows):
        piece = batch.slice(start, most_rows)
        if most_bytes is not None and piece.num_rows > 1 and own_bytes(piece) > most_bytes:
            yield from pieces(piece, -(-piece.num_rows // 2), schema, most_bytes)
        else:
            yield piece


def matching(
    plan: LookupPlan, stream: pa.RecordBatch, left: Indices, before: Mask, column: Callable[[str], pa.Array]
) -> Mask:
    """Which of the pairs count; ``column`` gives the master's column beside ``stream.take(left)``. The pairs of a
    stream row stand together, in the store's order; ``before``: had it a match in an earlier piece?
    """
    taken = pa.array(left)
    if plan.codec.exact:
        keep = np.ones(len(left), np.bool_)
    else:
        ours = [stream.column(name).take(taken) for name in plan.stream_keys]
        keep = plan.codec.same(ours, [column(item.name) for item in plan.codec.fields])
    if plan.as_of is not None:
        moments = stream.column(plan.as_of.stream).take(taken)
        keep &= plan.as_of.covers(moments, *(column(name) for name in plan.as_of.master_columns))
    return keep if plan.multiple == "all" else _firsts(plan, stream, left, before, keep)


def _firsts(plan: LookupPlan, stream: pa.RecordBatch, left: Indices, before: Mask, keep: Mask) -> Mask:
    kept = np.flatnonzero(keep)
    of = left[kept]
    new = np.ones(len(of), np.bool_)
    new[1:] = of[1:] != of[:-1]
    new &= ~before[kept]
    if plan.multiple == "error" and not new.all():
        row = int(of[~new][0])
        row_words = ", ".join(
            f"{name}={readable(stream.column(name).slice(row, 1))[0]!r}" for name in plan.matching_columns
        )
        rows = "rows of this key" if plan.as_of is None else f"versions of this key with {plan.as_of}"
        raise FanOutError(
            f"multiple='error': the stream row with {row_words} has more than one match; the master has several "
            f"{rows}. Repair the master, or use multiple='all' for all of them or 'first' for one"
        )
    result = np.zeros(len(keep), np.bool_)
    result[kept[new]] = True
    return result
