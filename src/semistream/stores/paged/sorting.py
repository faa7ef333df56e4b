"""External sort: rows in any order in, rows in code order out, within a bound of memory.

Rows are sorted in runs and, when they do not all fit, spilled; the runs are merged block by block: everything up to the
smallest last code of the loaded blocks is ready to leave, and is sorted by numpy.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from semistream import kernels
from semistream.durable import explained
from semistream.keys import Codes
from semistream.rows import Addresses, PackedRows, address_of
from semistream.stores.contract import Bytes, Indices, portions


@dataclass
class Block:
    """Rows with their codes; ``buffers`` keeps the memory behind the addresses alive."""

    codes: Codes
    rows: Addresses
    lengths: Indices
    buffers: list[Bytes]

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def bytes(self) -> int:
        return 24 * len(self.codes) + sum(buffer.nbytes for buffer in self.buffers)

    @staticmethod
    def of(codes: Codes, packed: PackedRows) -> "Block":
        """A block of freshly packed rows."""
        return Block(codes, packed.addresses, np.diff(packed.offsets), [packed.buffer])

    @staticmethod
    def joined(blocks: "list[Block]") -> "Block":
        """Several blocks as one, in their order."""
        return Block(
            np.concatenate([block.codes for block in blocks]),
            np.concatenate([block.rows for block in blocks]),
            np.concatenate([block.lengths for block in blocks]),
            [buffer for block in blocks for buffer in block.buffers],
        )

    @staticmethod
    def sorted_from(blocks: "list[Block]") -> "Block":
        """Several blocks as one, in code order; equal codes keep the order of the blocks."""
        together = Block.joined(blocks)
        return together.part(np.argsort(together.codes, kind="stable"))

    def part(self, some: slice | Indices) -> "Block":
        """Some of the rows, in the order in which they are named."""
        return Block(self.codes[some], self.rows[some], self.lengths[some], self.buffers)

    def copy(self) -> "Block":
        """The same rows in a buffer of their own, one after the other."""
        data = np.empty(int(self.lengths.sum()), np.uint8)
        kernels.rows.gather_rows(np.ascontiguousarray(self.rows), np.ascontiguousarray(self.lengths), address_of(data))
        rows = np.cumsum(self.lengths) - self.lengths + address_of(data)
        return Block(self.codes.copy(), rows, self.lengths.copy(), [data])


class _Run:
    """A sorted run on disk, read back block by block."""

    block: Block  # the rows that come next, from the first `load` on

    def __init__(self, file: IO[bytes], scratch: Path, rows: Block, block_bytes: int) -> None:
        self.file = file
        self._scratch = scratch
        self._places: list[tuple[int, int, int]] = []
        self._next = 0
        with explained("spill rows to", scratch):
            for start, end in portions(rows.lengths + 16, block_bytes):
                piece = rows.part(slice(start, end)).copy()
                (data,) = piece.buffers
                self._places.append((file.tell(), len(piece), len(data)))
                for array in (piece.codes, piece.lengths, data):
                    file.write(array.data.cast("B"))

    @property
    def last(self) -> bool:
        """True when no rows come after those of the block."""
        return self._next == len(self._places)

    def load(self) -> None:
        place, count, size = self._places[self._next]
        self._next += 1
        with explained("read spilled rows from", self._scratch):  # what the buffer holds is written first
            self.file.seek(place)
            codes = np.frombuffer(self.file.read(8 * count), np.uint64)
            lengths = np.frombuffer(self.file.read(8 * count), np.int64)
            data = np.frombuffer(self.file.read(size), np.uint8)
        rows = np.cumsum(lengths) - lengths + address_of(data)
        self.block = Block(codes, rows, lengths, [data])

    def take(self, bound: np.uint64) -> Block:
        """The rows of the block up to this code."""
        cut = int(np.searchsorted(self.block.codes, bound, "right"))
        taken, self.block = self.block.part(slice(cut)), self.block.part(slice(cut, None))
        if not (len(self.block) or self.last):
            self.load()
        return taken


def sort_blocks(blocks: Iterable[Block], memory_bytes: int, scratch: Path) -> Iterator[Block]:
    """Yield all rows in code order, holding about ``memory_bytes`` at a time; spills go to ``scratch``."""
    run_bytes = max(memory_bytes // 2, 1 << 20)
    # Block size for up to 64 runs; more runs only mean smaller memory use per run, never a wrong merge.
    block_bytes = max(run_bytes // 64, 1 << 18)
    pending: list[Block] = []
    held = 0
    runs: list[_Run] = []
    with ExitStack() as stack:

        def spill() -> None:
            with explained("spill rows to", scratch):
                file = runs[0].file if runs else stack.enter_context(tempfile.TemporaryFile(dir=scratch))
            runs.append(_Run(file, scratch, Block.sorted_from(pending), block_bytes))

        for block in blocks:
            pending.append(block)
            held += block.bytes
            if held >= run_bytes:
                spill()
                pending, held = [], 0
        if pending and runs:
            spill()
            pending = []
        elif pending:
            yield Block.sorted_from(pending)
        yield from _merged(runs)


def _merged(runs: list[_Run]) -> Iterator[Block]:
    runs = [run for run in runs if not run.last]  # blocks may have had no rows
    for run in runs:
        run.load()
    while runs:
        bound = min((run.block.codes[-1] for run in runs if not run.last), default=np.uint64(np.iinfo(np.uint64).max))
        yield Block.sorted_from([run.take(bound) for run in runs])
        runs = [run for run in runs if len(run.block)]
