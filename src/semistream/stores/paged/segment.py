"""A segment: one immutable file of pages with its index.

``[header 4 KiB | pages | sections | footer JSON | trailer 32 bytes]``. Pages begin at a multiple of 4 KiB and of
their stride, so they can be read with O_DIRECT. Sections, each with a checksum: ``firsts`` (first code of each page),
``starts`` (only when some page takes several strides), ``changed`` (codes that a delta overrides), ``touched`` (those
among them that its own version changed, when it also holds earlier deltas) and ``bloom`` (filter of the keys).
"""

import json
import os
import struct
import uuid
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from semistream import kernels
from semistream.durable import explained, private, sync_directory
from semistream.errors import CorruptStoreError, StoreError, StoreNotFoundError
from semistream.keys import Codes
from semistream.rows import RowLayout, address_of
from semistream.stores.paged.manifest import SegmentEntry
from semistream.stores.paged.sorting import Block

MAGIC = b"SEMISTRM"
DATA_AT = 4096
_HEADER = struct.Struct("<8sII")
_TRAILER = struct.Struct("<QQQ8s")
_FORMAT = 1
_BLOOM_BITS = 10
Numbers = npt.NDArray[Any]


class SegmentWriter:
    """Writes rows, given in key order, to a new file of a store, which becomes visible when it is complete."""

    def __init__(self, root: Path, layout: RowLayout, page_bytes: int, expected_rows: int = 0) -> None:
        self.path = root / f"segment-{uuid.uuid4().hex[:16]}.pages"
        self.layout = layout
        self.page_bytes = page_bytes
        self.rows = self.keys = 0
        self._last: int | None = None
        self._group = self._largest_group = 0
        self._strides = 0
        self._firsts: list[Codes] = []
        self._starts: list[npt.NDArray[np.int64]] = []
        self._bloom = np.zeros(8 * max(1, -(-expected_rows * _BLOOM_BITS // 512)), np.uint64) if expected_rows else None
        self._carry: Block | None = None
        self._temporary = root / f".{self.path.name}.{os.getpid()}"
        with explained("write", self.path):
            self._file = open(self._temporary, "xb", buffering=0, opener=private)  # noqa: SIM115 - closed by finish or abort

    def append(self, block: Block) -> None:
        """Add rows in code order; what may share a page with later rows is kept back until they come."""
        if len(block) == 0:
            return
        self._count(block.codes)
        if self._bloom is not None:
            kernels.bloom.bloom_add(self._bloom, block.codes)
        self._fill(block if self._carry is None else Block.joined([self._carry, block]), final=False)

    def _fill(self, block: Block, *, final: bool) -> None:
        codes, rows, lengths = map(np.ascontiguousarray, (block.codes, block.rows, block.lengths))
        longest = int(lengths.max()) + 64
        strides = max(256, -(-longest // self.page_bytes) + 2)
        out = np.empty(strides * self.page_bytes, np.uint8)
        firsts = np.empty(strides, np.uint64)
        starts = np.empty(strides, np.int64)
        progress = np.zeros(3, np.int64)
        done = 0
        while done < len(codes):
            left = rows[done:], lengths[done:], codes[done:], self.layout.fixed, final
            output = self.page_bytes, address_of(out), strides, self._strides
            kernels.pages.fill_pages(*left, *output, firsts, starts, progress)
            consumed, written, used = progress.tolist()
            if written == 0:
                break
            self.write(out[: used * self.page_bytes].data)
            self._firsts.append(firsts[:written].copy())
            self._starts.append(starts[:written].copy())
            self._strides += used
            done += consumed
        self._carry = block.part(slice(done, None)).copy() if done < len(block) else None

    def write(self, data: bytes | memoryview) -> None:
        """All of it: a disk that is nearly full takes less than it is given, without an error."""
        left = memoryview(data).cast("B")
        with explained("write", self.path):
            while len(left):
                left = left[self._file.write(left) or 0 :]

    def _count(self, codes: Codes) -> None:
        begins = np.flatnonzero(np.append(int(codes[0]) != self._last, codes[1:] != codes[:-1]))
        groups = np.diff(np.concatenate([[-self._group], begins, [len(codes)]]))  # the first one goes on
        self.rows += len(codes)
        self.keys += len(begins)
        self._largest_group = max(self._largest_group, int(groups.max()))
        self._group = int(groups[-1])
        self._last = int(codes[-1])

    def finish(self, role: str, changed: Codes | None = None, touched: Codes | None = None) -> SegmentEntry:
        """Write index and footer, sync, rename; returns the entry for the manifest."""
        if self._carry is not None:
            self._fill(self._carry, final=True)
        starts = np.concatenate([np.empty(0, np.int64), *self._starts])
        sections: dict[str, Numbers | None] = {
            "firsts": np.concatenate([np.empty(0, np.uint64), *self._firsts]),
            "starts": starts if self._strides != len(starts) else None,
            "changed": changed,
            "touched": touched,
            "bloom": self._bloom,
        }
        places = {}
        for name, array in sections.items():
            if array is not None:
                data = np.ascontiguousarray(array)
                places[name] = [self._file.tell(), data.nbytes, _checksum(data)]
                self.write(data.tobytes())
        about = {"file": self.path.name, "pages": len(starts), "strides": self._strides, "rows": self.rows}
        footer = json.dumps({**about, "sections": places}).encode()
        check = _checksum(np.frombuffer(footer, np.uint8))
        self.write(footer + _TRAILER.pack(self._file.tell(), len(footer), check, MAGIC))
        size = self._file.tell()
        with explained("write", self.path):
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._temporary, self.path)
            sync_directory(self.path.parent)
        return SegmentEntry(
            file=self.path.name,
            role=role,
            pages=len(starts),
            rows=self.rows,
            keys=self.keys,
            bytes=size,
            largest_page=self.page_bytes * int(np.diff(np.append(starts, self._strides)).max(initial=1)),
            largest_group=self._largest_group,
            footer_checksum=check,
        )

    def abort(self) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def write_segment(
    root: Path,
    layout: RowLayout,
    page_bytes: int,
    blocks: Iterable[Block],
    role: str = "base",
    *,
    filtered_rows: int = 0,
    expected_rows: int | None = None,  # that the blocks must have together
    changed: Codes | None = None,
    touched: Codes | None = None,
) -> SegmentEntry:
    """A segment of blocks in key order; of a base, a filter for so many rows. On an error nothing is left of it."""
    writer = SegmentWriter(root, layout, page_bytes, filtered_rows)
    try:
        writer.write(_HEADER.pack(MAGIC, _FORMAT, page_bytes).ljust(DATA_AT, b"\0"))
        for block in blocks:
            writer.append(block)
        if expected_rows not in (None, writer.rows):
            raise StoreError(f"{root}: {writer.rows:,} rows were read of {expected_rows:,}; nothing was changed")
        return writer.finish(role, changed, touched)
    except BaseException:
        writer.abort()
        raise


class Segment:
    """An open segment: its index in memory, its pages on disk."""

    def __init__(self, path: Path, entry: SegmentEntry, page_bytes: int, *, direct: bool = False) -> None:
        self.path = path
        self.entry = entry
        self.page_bytes = page_bytes
        self.fd = self._plain = -1  # pages are read from the one, all else from the other
        try:
            with explained("open", path):
                self._plain = self.fd = os.open(path, os.O_RDONLY)
                if direct:
                    self.fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except FileNotFoundError:
            raise StoreNotFoundError(f"{path} is missing; the store is incomplete") from None
        with explained("read", path):
            self._read_footer(self._plain)

    def _read_footer(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        if size != self.entry.bytes:
            self.damaged(f"it has {size:,} bytes instead of {self.entry.bytes:,}")
        magic, version, page_bytes = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        if magic != MAGIC or version != _FORMAT or page_bytes != self.page_bytes:
            self.damaged("its header is not that of a semistream segment")
        place, length, check, magic = _TRAILER.unpack(os.pread(fd, _TRAILER.size, size - _TRAILER.size))
        footer = os.pread(fd, length, place) if place + length <= size else b""
        if magic != MAGIC or check != self.entry.footer_checksum or _checksum(np.frombuffer(footer, np.uint8)) != check:
            self.damaged("its footer does not fit the manifest")
        found = json.loads(footer)
        if found.get("file") != self.path.name:
            self.damaged(f"it was written as {found.get('file')}")
        self.pages: int = found["pages"]
        self.strides: int = found["strides"]
        self.sections: dict[str, tuple[int, int, int]] = found["sections"]

    def section(self, name: str, dtype: Any = np.uint64) -> Numbers:
        """A section, or nothing; read each time, through the open file: a vacuum may have removed its name."""
        if name not in self.sections:
            return np.empty(0, dtype)
        place, length, check = self.sections[name]
        array = np.empty(length // 8, dtype)
        view = array.view(np.uint8).data
        done = 0
        with explained("read", self.path):
            while done < length:
                got = os.preadv(self._plain, [view[done:]], place + done)
                if got == 0:
                    self.damaged(f"section {name!r} is cut short")
                done += got
        if _checksum(array) != check:
            self.damaged(f"section {name!r} has a wrong checksum")
        return array

    @cached_property
    def firsts(self) -> Codes:
        return self.section("firsts")

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """The first stride of each page; empty when every page takes one."""
        return self.section("starts", np.int64)

    def bytes_of(self, *names: str) -> int:
        """Bytes of these sections together; those that are not there have none."""
        return sum(self.sections[name][1] for name in names if name in self.sections)

    def places(self, pages: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Stride number and length in strides of each page."""
        if len(self.starts) == 0:
            return pages, np.ones(len(pages), np.int64)
        ends = np.append(self.starts[1:], self.strides)
        return self.starts[pages], ends[pages] - self.starts[pages]

    def damaged(self, what: str) -> NoReturn:
        raise CorruptStoreError(f"{self.path} is damaged: {what}; restore it from a copy or build the store again")

    def __del__(self) -> None:
        for fd in {self.fd, self._plain} - {-1}:
            os.close(fd)


def _checksum(array: Numbers) -> int:
    return int(kernels.hashing.checksum_of(address_of(array), array.nbytes))
