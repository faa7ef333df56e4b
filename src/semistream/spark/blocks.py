"""Keys asked for in blocks, and their answers in order, however the join gives them, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.budget import format_bytes
from semistream.errors import FanOutError
from semistream.spark.columns import fitted, spark_arrow
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


def find_matches(task: Task, keys: list[pa.Array]) -> tuple[list[pa.Array], Mask]:
    """The master's columns for each row of a block, in order, and which rows have no match."""
    found, added = _found(task, keys)
    place = np.full(len(keys[0]), -1, np.int64)
    place[found] = np.arange(len(found))
    return _taken(task, added, place)


def find_all_matches(task: Task, keys: list[pa.Array], most_bytes: int) -> tuple[list[pa.Array], Mask, Positions]:
    """The same where a row may have several matches: with the row that each belongs to; one without has an entry.

    Raises `TooManyAnswersError` when they take more than ``most_bytes``.
    """
    found, added = _found(task, keys, most_bytes)
    lonely = np.flatnonzero(np.bincount(found, minlength=len(keys[0])) == 0)
    owner = np.concatenate([found, lonely])
    order = np.argsort(owner, kind="stable")
    source = np.concatenate([np.arange(len(found)), np.full(len(lonely), -1)])[order]
    return *_taken(task, added, source), owner[order]


def list_offsets(owner: Positions, rows: int) -> pa.Array:
    """Where the entries of each row begin, in a list of entries in the order of their rows."""
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(owner, minlength=rows), out=offsets[1:])
    return pa.array(offsets)


def _found(task: Task, keys: list[pa.Array], most_bytes: int | None = None) -> tuple[Positions, list[pa.Array]]:
    """Numbers of the rows that matched, and the master's columns beside each."""
    plan = task.join.plan
    numbers = pa.array(np.arange(len(keys[0])))  # in the last of the join's columns
    batches = task.join.join([pa.RecordBatch.from_arrays([*keys, numbers], schema=plan.stream)])
    parts, held = [], 0
    for batch in batches:
        parts.append(batch)
        held += batch.nbytes
        if most_bytes is not None and held > most_bytes:
            batches.close()
            raise TooManyAnswersError
    table = pa.Table.from_batches(parts, plan.output)
    kinds = [spark_arrow(plan.output.field(name).type) for name in plan.names]
    added = [fitted(table.column(n).combine_chunks(), kind) for n, kind in zip(plan.names, kinds, strict=True)]
    return table.column(len(plan.stream) - 1).to_numpy(), added


def _taken(task: Task, added: list[pa.Array], source: Positions) -> tuple[list[pa.Array], Mask]:
    missing = source < 0
    places, absent = pa.array(source, mask=missing), pa.array(missing)
    taken, defaults = [column.take(places) for column in added], task.operator.spec.defaults or {}
    for number, name in enumerate(task.operator.names):
        value = defaults.get(name)
        if value is not None:
            taken[number] = pc.if_else(absent, pa.scalar(value, taken[number].type), taken[number])
    return taken, missing
