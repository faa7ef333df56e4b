"""External sort: rows in any order in, rows in code order out, within a bound of memory.

Rows are packed at once, sorted in runs and, when they do not all fit, spilled; the runs are merged block by block:
everything up to the smallest last code of the loaded blocks is ready to leave, and is sorted by numpy. No row is
touched by the interpreter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from semistream.durable import explained
from semistream.keys import Codes
from semistream.rows import Addresses, PackedRows, address_of
from semistream.stores.group_reader import portions

Lengths = npt.NDArray[np.int64]


@dataclass
class Block:
    """Rows with their codes; ``buffers`` keeps the memory behind the addresses alive."""

    codes: Codes
    rows: Addresses
    lengths: Lengths
    buffers: list[npt.NDArray[np.uint8]]

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def bytes(self) -> int:
        """Memory that the block takes."""
        return 24 * len(self.codes) + sum(buffer.nbytes for buffer in self.buffers)

    @staticmethod
    def of(codes: Codes, packed: PackedRows) -> Block:
        """A block of freshly packed rows."""
        return Block(codes, packed.addresses, np.diff(packed.offsets), [packed.buffer])

    @staticmethod
    def sorted_from(blocks: list[Block]) -> Block:
        """Several blocks as one, in code order; equal codes keep the order of the blocks."""
        codes = np.concatenate([block.codes for block in blocks])
        order = np.argsort(codes, kind="stable")
        return Block(
            codes[order],
            np.concatenate([block.rows for block in blocks])[order],
            np.concatenate([block.lengths for block in blocks])[order],
            [buffer for block in blocks for buffer in block.buffers],
        )

    @staticmethod
    def joined(blocks: list[Block]) -> Block:
        """Several blocks as one, in their order."""
        return Block(
            np.concatenate([block.codes for block in blocks]),
            np.concatenate([block.rows for block in blocks]),
            np.concatenate([block.lengths for block in blocks]),
            [buffer for block in blocks for buffer in block.buffers],
        )

    def part(self, start: int, end: int) -> Block:
        """Some of the rows."""
        return Block(self.codes[start:end], self.rows[start:end], self.lengths[start:end], self.buffers)

    def copy(self) -> Block:
        """The same rows in a buffer of their own, one after the other."""
        from semistream.kernels.rows import gather_rows

        data = np.empty(int(self.lengths.sum()), np.uint8)
        gather_rows(np.ascontiguousarray(self.rows), np.ascontiguousarray(self.lengths), address_of(data))
        rows = np.cumsum(self.lengths) - self.lengths + address_of(data)
        return Block(self.codes.copy(), rows, self.lengths.copy(), [data])


class _Run:
    """A sorted run on disk, read back block by block."""

    def __init__(self, file: IO[bytes], scratch: Path, block: Block, block_bytes: int) -> None:
        self._file = file
        self._scratch = scratch
        self._places: list[tuple[int, int, int]] = []
        self._next = 0
        with explained("spill rows to", scratch):
            self._write(block, block_bytes)

    def _write(self, block: Block, block_bytes: int) -> None:
        for start, end in portions(block.lengths + 16, block_bytes):
            piece = block.part(start, end).copy()
            (data,) = piece.buffers
            self._places.append((self._file.tell(), len(piece), len(data)))
            for array in (piece.codes, piece.lengths, data):
                self._file.write(array.data.cast("B"))

    def next_block(self) -> Block | None:
        """The next rows of the run."""
        if self._next == len(self._places):
            return None
        place, count, size = self._places[self._next]
        self._next += 1
        with explained("read spilled rows from", self._scratch):  # what the buffer holds is written first
            self._file.seek(place)
            codes = np.frombuffer(self._file.read(8 * count), np.uint64)
            lengths = np.frombuffer(self._file.read(8 * count), np.int64)
            data = np.frombuffer(self._file.read(size), np.uint8)
        rows = np.cumsum(lengths) - lengths + address_of(data)
        return Block(codes, rows, lengths, [data])

    @property
    def last(self) -> bool:
        """True when the block handed out last was the run's last."""
        return self._next == len(self._places)


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
            if not runs:
                with explained("spill rows to", scratch):
                    files.append(stack.enter_context(tempfile.TemporaryFile(dir=scratch)))
            runs.append(_Run(files[0], scratch, Block.sorted_from(pending), block_bytes))

        files: list[IO[bytes]] = []
        for block in blocks:
            pending.append(block)
            held += block.bytes
            if held >= run_bytes:
                spill()
                pending, held = [], 0
        if pending and runs:
            spill()
            pending = []
        if pending:
            yield Block.sorted_from(pending)
        yield from _merged(runs)


def _merged(runs: list[_Run]) -> Iterator[Block]:
    loaded = [block for run in runs if (block := run.next_block()) is not None]
    while runs:
        unfinished = [int(block.codes[-1]) for run, block in zip(runs, loaded, strict=True) if not run.last]
        bound = np.uint64(min(unfinished)) if unfinished else np.uint64(np.iinfo(np.uint64).max)
        ready = []
        for i, (run, block) in enumerate(zip(runs, loaded, strict=True)):
            cut = int(np.searchsorted(block.codes, bound, "right"))
            ready.append(block.part(0, cut))
            if cut < len(block):
                loaded[i] = block.part(cut, len(block))
            else:
                following = run.next_block()
                loaded[i] = following if following is not None else block.part(cut, cut)
        yield Block.sorted_from([block for block in ready if len(block)])
        kept = [i for i, block in enumerate(loaded) if len(block)]
        runs, loaded = [runs[i] for i in kept], [loaded[i] for i in kept]
