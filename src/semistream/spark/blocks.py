"""Keys asked for in blocks, and their answers in order, however the join gives them, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.budget import format_bytes
from semistream.errors import FanOutError
from semistream.spark.frames import fitted, spark_arrow
from semistream.spark.operator import Task

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]
_MOST_BLOCK_ROWS = 1 << 17
_LEAST_BLOCK_ROWS = 10_000
_FIRST_BLOCK_ROWS = 1 << 14
_ONE_ROW_BYTES = 64 << 20  # what the answers to a single row may take


class TooManyAnswersError(Exception):
    """The rows of a block have more matches than can be held at once."""


class BlockSize:
    """How many rows are asked for at once: their answers, held until they are in order, take a small share of memory.

    The first block goes by the width of a whole row of the master, those after it by the answers that were seen. Blocks
    grow: the first ones are small, so that Python has work while the JVM still makes rows, and each later one may be as
    large as all before it together.
    """

    def __init__(self, tasks: Sequence[Task], *, many: bool) -> None:
        self._share = sum(task.operator.memory_bytes // task.operator.tasks // 16 for task in tasks)
        self._row = sum(task.join.facts.row_bytes for task in tasks if task.join.plan.columns)
        self._answered = 0
        self._least = 1 if many else _LEAST_BLOCK_ROWS  # a row may have so many matches that it is one block

    def __call__(self) -> int:
        """Rows of the next block."""
        most = min(_MOST_BLOCK_ROWS, max(_FIRST_BLOCK_ROWS, self._answered))
        return max(self._least, min(most, int(self._share / (64 + self._row))))

    def most_bytes(self, rows: int) -> int:
        """That the answers to so many rows may take."""
        return max(4 * self._share, _ONE_ROW_BYTES if rows == 1 else 0)

    def note(self, answer: pa.Array) -> pa.Array:
        """Note the width of an answer, and give it back."""
        self._row = answer.nbytes / max(1, len(answer))
        self._answered += len(answer)
        return answer


def answer_block(
    block: pa.RecordBatch, answer: Callable[[pa.RecordBatch, int], pa.Array], tasks: Sequence[Task], size: BlockSize
) -> Iterator[pa.Array]:
    """Answers to a block; where they are too many to be held at once, to one half after the other."""
    before = [task.join.stats.copy() for task in tasks]
    try:
        made = answer(block, size.most_bytes(block.num_rows))
    except TooManyAnswersError:
        if block.num_rows == 1:
            stores = ", ".join(task.operator.store for task in tasks)
            raise FanOutError(
                f"one row has more than {format_bytes(size.most_bytes(1))} of matches in {stores}; use "
                "multiple='first', or a master with fewer rows a key"
            ) from None
        for task, stats in zip(tasks, before, strict=True):
            task.join.stats.put_back(stats)
    else:
        yield size.note(made)
        return
    half = block.num_rows // 2
    yield from answer_block(block.slice(0, half), answer, tasks, size)
    yield from answer_block(block.slice(half), answer, tasks, size)


def find_matches(
    task: Task, keys: list[pa.Array], most_bytes: int | None = None
) -> tuple[list[pa.Array], Mask, Positions | None]:
    """The master's columns for each row of a block, in order; which have no match; None.

    With ``most_bytes`` a row may have several matches: in place of None come the rows that each entry belongs to; a row
    without a match has one entry. Raises `TooManyAnswersError` when the matches take more.
    """
    plan, rows = task.join.plan, len(keys[0])
    numbers = pa.array(np.arange(rows))  # in the last of the join's columns
    batches = task.join.join([pa.RecordBatch.from_arrays([*keys, numbers], schema=plan.stream)])
    parts, held = [], 0
    for batch in batches:
        parts.append(batch)
        held += batch.nbytes
        if most_bytes is not None and held > most_bytes:
            batches.close()
            raise TooManyAnswersError
    table = pa.Table.from_batches(parts, plan.output)
    found, owner = table.column(len(plan.stream) - 1).to_numpy(), None
    source = np.full(rows, -1, np.int64)
    if most_bytes is None:
        source[found] = np.arange(len(found))
    else:
        lonely = np.flatnonzero(np.bincount(found, minlength=rows) == 0)
        owner = np.concatenate([found, lonely])
        order = np.argsort(owner, kind="stable")
        source = np.concatenate([np.arange(len(found)), np.full(len(lonely), -1)])[order]
        owner = owner[order]
    missing = source < 0
    places, absent, columns = pa.array(source, mask=missing), pa.array(missing), []
    for name, new_name in zip(plan.names, task.operator.names, strict=True):
        column = fitted(table.column(name).combine_chunks(), spark_arrow(plan.output.field(name).type)).take(places)
        value = (task.operator.spec.defaults or {}).get(new_name)
        columns.append(column if value is None else pc.if_else(absent, pa.scalar(value, column.type), column))
    return columns, missing, owner


def list_offsets(owner: Positions, rows: int) -> pa.Array:
    """Where the entries of each row begin, in a list of entries in the order of their rows."""
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(owner, minlength=rows), out=offsets[1:])
    return pa.array(offsets)
