"""Keys asked for in blocks, and their answers in order, however the join gives them, in bounded memory.

A block comes to the join in pieces, as the JVM makes its rows. All its misses wait for one sweep, so blocks are as
large as memory lets them be.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.budget import format_bytes
from semistream.errors import FanOutError
from semistream.keys import Mask
from semistream.shedding.intervals import cut_blocks
from semistream.shedding.strategy import Positions
from semistream.spark.frames import fitted, spark_arrow
from semistream.spark.operator import Task, least_room, row_bytes

Answer = Callable[[Iterable[pa.RecordBatch], int], pa.Array]  # to the pieces of a block, in so many bytes
_LEAST_BLOCK_ROWS, _MOST_BLOCK_ROWS = 256, 1 << 20
_WORK_BYTES = 8  # of a row in a block: its number, its place among the answers
_MATCH_BYTES = 32  # the same for each match of rows that may have many: its row, its place and their order
_COPIES = 2.5  # of an answer: as the join gave it, in order, and one of its columns once more
_PIECE_ROWS = 1 << 16
_ONE_ROW_BYTES = 64 << 20  # what the answers to a single row may take
_MOST_BYTES = 1 << 30  # of a block and its answers, however much memory there is: a column of text ends at 2 GiB


class TooManyAnswersError(Exception):
    """The rows of a block have more matches than can be held at once."""


class BlockSize:
    """How many rows are answered together: there is room for their keys and answers, held until they are in order. The
    width of answers is a guess for the first block, and then what was seen.
    """

    def __init__(self, tasks: Sequence[Task], *, many: bool) -> None:
        self.tasks, self.many = tasks, many
        room = min(_MOST_BYTES, sum(task.room for task in tasks))
        self._room = room / (2 if many else 1)  # most blocks should not have to be halved
        self._most_bytes = min(_MOST_BYTES, sum(max(task.room, least_room(task.operator)) for task in tasks) // 2)
        self._row = sum(row_bytes(task.join.store, task.join.plan) for task in tasks)
        self._asked = 8.0

    def __call__(self) -> int:
        """Rows of a block; where a row may have many matches, it can be a block by itself."""
        work = _MATCH_BYTES if self.many else _WORK_BYTES
        rows = int(self._room / (work + self._asked + _COPIES * self._row))
        return max(1 if self.many else _LEAST_BLOCK_ROWS, min(_MOST_BLOCK_ROWS, rows))

    def most_bytes(self, rows: int) -> int:
        """That the answers to so many rows may take."""
        return max(self._most_bytes, _ONE_ROW_BYTES if rows == 1 else 0)

    def note_keys(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        """Note the width of the keys that came, and give them back."""
        self._asked = piece.nbytes / max(1, piece.num_rows)
        return piece

    def note(self, answer: pa.Array) -> pa.Array:
        """Note the width of an answer, and give it back."""
        self._row = answer.nbytes / max(1, len(answer))
        return answer


def answers(batches: Iterable[pa.RecordBatch], answer: Answer, size: BlockSize) -> Iterator[pa.Array]:
    """What ``answer`` gives for one block after the other, read as its rows come, or whole where it may be halved."""
    taken, most = 0, _MOST_BLOCK_ROWS if size.many else _PIECE_ROWS
    pieces = cut_blocks(batches, lambda: max(1, min(most, size() - taken)))

    def block(piece: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
        nonlocal taken
        while piece is not None:
            taken += piece.num_rows
            yield piece
            piece = next(pieces, None) if taken < size() else None

    for first in pieces:
        if size.many:
            yield from answer_block([first], answer, size, first.num_rows)
        else:
            for made in answer_block(block(first), answer, size):
                yield from (made.slice(start, _PIECE_ROWS) for start in range(0, len(made), _PIECE_ROWS))
        taken = 0


def answer_block(block: Iterable[pa.RecordBatch], answer: Answer, size: BlockSize, rows: int = 0) -> Iterator[pa.Array]:
    """Answers to a block (of ``rows``, if that is known); too many to be held at once, to one half after the other."""
    before = [task.join.stats.copy() for task in size.tasks]
    pieces, again = itertools.tee(map(size.note_keys, block))
    try:
        made = answer(pieces, size.most_bytes(rows))
    except TooManyAnswersError:
        if rows == 1:
            stores = ", ".join(task.operator.store for task in size.tasks)
            raise FanOutError(
                f"one row has more than {format_bytes(size.most_bytes(1))} of matches in {stores}; use "
                "multiple='first', or a master with fewer rows a key"
            ) from None
        for task, stats in zip(size.tasks, before, strict=True):
            task.join.stats.put_back(stats)
    else:
        yield size.note(made)
        return
    whole = pa.concat_batches(again)
    for half in (whole.slice(0, whole.num_rows // 2), whole.slice(whole.num_rows // 2)):
        yield from answer_block([half], answer, size, half.num_rows)


def find_matches(
    task: Task, pieces: Iterable[list[pa.Array]], most_bytes: int, *, many: bool
) -> tuple[list[pa.Array], Mask, Positions | None]:
    """The master's columns for each row of a block, in order; which have no match; None. ``pieces`` are its keys.

    Where a row may have ``many`` matches, in place of None come the rows that each entry belongs to; a row without a
    match has one entry. Raises `TooManyAnswersError` when the matches take more than ``most_bytes``: not for one row
    with one match.
    """
    plan, rows, asked, held = task.join.plan, 0, 0, 0  # bytes of the keys, and of their answers

    def numbered() -> Iterator[pa.RecordBatch]:
        nonlocal rows, asked
        for keys in pieces:
            numbers = pa.array(np.arange(rows, rows + len(keys[0]), dtype=np.int32))  # in the stream's last column
            rows += len(numbers)
            asked += sum(column.nbytes for column in keys)
            yield pa.RecordBatch.from_arrays([*keys, numbers], schema=plan.stream)

    parts: list[list[pa.Array]] = [[] for _ in range(1 + len(plan.names))]  # the numbers, and the master's columns
    batches = task.join.join(numbered())
    for batch in batches:
        for part, column in zip(parts, batch.columns[len(plan.stream) - 1 :], strict=True):
            part.append(column)
            held += column.nbytes
        task.held_bytes = max(task.held_bytes, asked + held)
        if held > most_bytes and (many or rows > 1):
            batches.close()
            raise TooManyAnswersError
    found = np.concatenate([np.empty(0, np.int32), *(part.to_numpy() for part in parts.pop(0))])
    source, owner = np.full(rows, -1, np.int32), None
    if not many:
        source[found] = np.arange(len(found), dtype=np.int32)
    else:
        lonely = np.flatnonzero(np.bincount(found, minlength=rows) == 0)
        owner = np.concatenate([found, lonely])
        order = np.argsort(owner, kind="stable")
        source = np.concatenate([np.arange(len(found)), np.full(len(lonely), -1)])[order]
        owner = owner[order]
    missing = source < 0
    places, absent, columns = pa.array(source, mask=missing), pa.array(missing), []
    del found, source
    for name, new_name in zip(plan.names, task.operator.names, strict=True):
        kind, part = plan.output.field(name).type, parts.pop(0)  # one column at a time is there twice
        column = fitted(pa.concat_arrays([pa.array([], kind), *part]), spark_arrow(kind)).take(places)
        value = (task.operator.spec.defaults or {}).get(new_name)
        columns.append(column if value is None else pc.if_else(absent, pa.scalar(value, column.type), column))
    work = len(missing) * (_MATCH_BYTES if many else _WORK_BYTES)
    task.held_bytes = max(task.held_bytes, asked + held + work + sum(column.nbytes for column in columns))
    return columns, missing, owner
