"""A segment: one immutable file of pages with its index.

``[header 4 KiB | pages | sections | footer JSON | trailer 32 bytes]``. Pages begin at a multiple of 4 KiB and of
their stride, so they can be read with O_DIRECT. Sections, each with a checksum: ``firsts`` (first code of each page),
``starts`` (only when some page takes several strides), ``changed`` (codes that a delta overrides), ``touched`` (those
among them that its own version changed, when it also holds earlier deltas) and ``bloom`` (filter of the keys).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.durable import explained, private, sync_directory
from semistream.errors import ArgumentError, CorruptStoreError, StoreNotFoundError
from semistream.keys import Codes
from semistream.rows import Addresses, RowLayout, address_of
from semistream.stores.paged.manifest import SegmentEntry

MAGIC = b"SEMISTRM"
DATA_AT = 4096
_HEADER = struct.Struct("<8sII")
_TRAILER = struct.Struct("<QQQ8s")
_FORMAT = 1
_BLOOM_BITS = 10
Numbers = npt.NDArray[Any]


def check_page_bytes(page_bytes: int) -> int:
    """A stride must suit O_DIRECT: a power of two from 4 KiB to 1 MiB."""
    if page_bytes not in [1 << shift for shift in range(12, 21)]:
        raise ArgumentError(f"page_bytes={page_bytes!r}: use a power of two from 4096 to 1048576")
    return page_bytes


class SegmentWriter:
    """Writes rows, given in key order, to a new file that becomes visible when it is complete."""

    def __init__(self, path: Path, layout: RowLayout, page_bytes: int, expected_rows: int = 0) -> None:
        self.path = path
        self.layout = layout
        self.page_bytes = page_bytes
        self.rows = self.keys = 0
        self._last: int | None = None
        self._group = self._largest_group = 0
        self._strides = 0
        self._largest_page = page_bytes
        self._firsts: list[Codes] = []
        self._starts: list[npt.NDArray[np.int64]] = []
        self._bloom = np.zeros(8 * max(1, -(-expected_rows * _BLOOM_BITS // 512)), np.uint64) if expected_rows else None
        self._carry: tuple[Codes, npt.NDArray[np.uint8], npt.NDArray[np.int64]] | None = None
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with explained("write", path):
            self._file = open(self._temporary, "xb", buffering=0, opener=private)  # noqa: SIM115 - closed by finish or abort
        header = _HEADER.pack(MAGIC, _FORMAT, page_bytes)
        with self.removed_on_error():
            self._write(header.ljust(DATA_AT, b"\0"))

    def append(self, codes: Codes, rows: Addresses, lengths: npt.NDArray[np.int64], *, final: bool = False) -> None:
        """Add rows in code order; what may share a page with later rows is kept back until they come."""
        from semistream.kernels import bloom, pages
        from semistream.kernels.rows import gather_rows

        self._count(codes)
        if self._bloom is not None and len(codes):
            bloom.bloom_add(self._bloom, codes)
        kept = self._carry  # keeps its buffer alive while the addresses are used
        if kept is not None:
            starts = np.cumsum(kept[2]) - kept[2] + address_of(kept[1])
            codes = np.concatenate([kept[0], codes])
            rows = np.concatenate([starts, rows])
            lengths = np.concatenate([kept[2], lengths])
        codes, rows = np.ascontiguousarray(codes), np.ascontiguousarray(rows)
        lengths = np.ascontiguousarray(lengths)
        if len(codes) == 0:
            return
        longest = int(lengths.max()) + 64
        strides = max(256, -(-longest // self.page_bytes) + 2)
        out = np.empty(strides * self.page_bytes, np.uint8)
        firsts = np.empty(strides, np.uint64)
        starts = np.empty(strides, np.int64)
        progress = np.zeros(3, np.int64)
        done = 0
        while done < len(codes):
            pages.fill_pages(
                rows[done:],
                lengths[done:],
                codes[done:],
                self.layout.fixed,
                final,
                self.page_bytes,
                address_of(out),
                strides,
                self._strides,
                firsts,
                starts,
                progress,
            )
            consumed, written, used = progress.tolist()
            if written == 0:
                break
            self._write(out[: used * self.page_bytes].data)
            self._firsts.append(firsts[:written].copy())
            self._starts.append(starts[:written].copy())
            sizes = np.diff(np.append(starts[:written], self._strides + used)) * self.page_bytes
            self._largest_page = max(self._largest_page, int(sizes.max()))
            self._strides += used
            done += consumed
        rest = np.empty(int(lengths[done:].sum()), np.uint8)
        gather_rows(rows[done:], lengths[done:], address_of(rest))
        self._carry = (codes[done:].copy(), rest, lengths[done:].copy()) if done < len(codes) else None

    def _write(self, data: bytes | memoryview) -> None:
        """All of it: a disk that is nearly full takes less than it is given, without an error."""
        left = memoryview(data).cast("B")
        with explained("write", self.path):
            while len(left):
                left = left[self._file.write(left) or 0 :]

    def _count(self, codes: Codes) -> None:
        if len(codes) == 0:
            return
        new = np.empty(len(codes), np.bool_)
        new[0] = self._last is None or int(codes[0]) != self._last
        np.not_equal(codes[1:], codes[:-1], out=new[1:])
        begins = np.flatnonzero(new)
        self.rows += len(codes)
        self.keys += len(begins)
        ends = np.append(begins[1:], len(codes))
        first = int(begins[0]) if len(begins) else len(codes)
        self._largest_group = max(self._largest_group, self._group + first)
        if len(begins):
            self._largest_group = max(self._largest_group, int((ends - begins).max()))
            self._group = len(codes) - int(begins[-1])
        else:
            self._group += len(codes)
        self._last = int(codes[-1])

    def finish(self, role: str, changed: Codes | None = None, touched: Codes | None = None) -> SegmentEntry:
        """Write index and footer, sync, rename; returns the entry for the manifest."""
        from semistream.kernels.hashing import checksum_of

        nothing = np.empty(0, np.int64)
        self.append(np.empty(0, np.uint64), nothing, nothing, final=True)
        starts = np.concatenate(self._starts) if self._starts else nothing
        sections: dict[str, Numbers] = {
            "firsts": np.concatenate(self._firsts) if self._firsts else np.empty(0, np.uint64)
        }
        if self._strides != len(starts):
            sections["starts"] = starts
        if changed is not None:
            sections["changed"] = changed
        if touched is not None:
            sections["touched"] = touched
        if self._bloom is not None:
            sections["bloom"] = self._bloom
        position = DATA_AT + self._strides * self.page_bytes
        places = {}
        for name, array in sections.items():
            data = np.ascontiguousarray(array)
            self._write(data.tobytes())
            places[name] = [position, data.nbytes, int(checksum_of(address_of(data), data.nbytes))]
            position += data.nbytes
        footer = json.dumps(
            {
                "file": self.path.name,
                "pages": len(starts),
                "strides": self._strides,
                "rows": self.rows,
                "sections": places,
            }
        ).encode()
        check = _checksum(footer)
        self._write(footer + _TRAILER.pack(position, len(footer), check, MAGIC))
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
            largest_page=self._largest_page,
            largest_group=self._largest_group,
            footer_checksum=check,
        )

    def abort(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    @contextmanager
    def removed_on_error(self) -> Iterator[SegmentWriter]:
        """Remove the half-written file when the body fails."""
        try:
            yield self
        except BaseException:
            self.abort()
            raise


class Segment:
    """An open segment: its index in memory, its pages on disk."""

    def __init__(self, path: Path, entry: SegmentEntry, page_bytes: int, *, direct: bool = False) -> None:
        self.path = path
        self.entry = entry
        self.page_bytes = page_bytes
        self._fd = self._plain = -1
        try:
            with explained("open", path):
                self._plain = self._fd = os.open(path, os.O_RDONLY)
                if direct:
                    self._fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except FileNotFoundError:
            raise StoreNotFoundError(f"{path} is missing; the store is incomplete") from None
        with explained("read", path):
            self._read_footer(self._plain)

    def _read_footer(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        if size != self.entry.bytes:
            self._damaged(f"it has {size:,} bytes instead of {self.entry.bytes:,}")
        magic, version, page_bytes = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        if magic != MAGIC or version != _FORMAT or page_bytes != self.page_bytes:
            self._damaged("its header is not that of a semistream segment")
        place, length, check, magic = _TRAILER.unpack(os.pread(fd, _TRAILER.size, size - _TRAILER.size))
        footer = os.pread(fd, length, place) if place + length <= size else b""
        if magic != MAGIC or check != self.entry.footer_checksum or _checksum(footer) != check:
            self._damaged("its footer does not fit the manifest")
        self._footer = json.loads(footer)
        if self._footer.get("file") != self.path.name:
            self._damaged(f"it was written as {self._footer.get('file')}")
        self.pages: int = self._footer["pages"]
        self.strides: int = self._footer["strides"]
        self.firsts: Codes = self._section(fd, "firsts", np.uint64)
        self.starts: npt.NDArray[np.int64] | None = (
            self._section(fd, "starts", np.int64) if "starts" in self._footer["sections"] else None
        )

    def _section(self, fd: int, name: str, dtype: Any) -> Numbers:
        from semistream.kernels.hashing import checksum_of

        place, length, check = self._footer["sections"].get(name, (0, 0, None))
        array = np.empty(length // 8, dtype)
        view = array.view(np.uint8).data
        done = 0
        while done < length:
            got = os.preadv(fd, [view[done:]], place + done)
            if got == 0:
                self._damaged(f"section {name!r} is cut short")
            done += got
        if check is not None and int(checksum_of(address_of(array), length)) != check:
            self._damaged(f"section {name!r} has a wrong checksum")
        return array

    def section(self, name: str, dtype: Any = np.uint64) -> Numbers:
        """A section that is read only when wanted ("changed", "bloom"); empty when there is none.

        Through the open file: a vacuum may have removed its name.
        """
        with explained("read", self.path):
            return self._section(self._plain, name, dtype)

    @property
    def sections(self) -> list[str]:
        """The sections that there are."""
        return list(self._footer["sections"])

    def touched(self) -> Codes:
        """The codes that the version changed which this delta was written for."""
        return self.section("touched" if "touched" in self.sections else "changed")

    def section_bytes(self, name: str) -> int:
        """How large a section is."""
        return int(self._footer["sections"].get(name, (0, 0, None))[1])

    @property
    def fd(self) -> int:
        """The descriptor that pages are read from."""
        return self._fd

    @property
    def index_bytes(self) -> int:
        """Memory that the index takes."""
        return self.firsts.nbytes + (self.starts.nbytes if self.starts is not None else 0)

    def places(self, pages: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Stride number and length in strides of each page."""
        if self.starts is None:
            return pages, np.ones(len(pages), np.int64)
        ends = np.append(self.starts[1:], self.strides)
        return self.starts[pages], ends[pages] - self.starts[pages]

    def _damaged(self, what: str) -> None:
        raise CorruptStoreError(f"{self.path} is damaged: {what}; restore it from a copy or build the store again")

    def close(self) -> None:
        """Close the file; idempotent."""
        for fd in {self._fd, self._plain} - {-1}:
            os.close(fd)
        self._fd = self._plain = -1

    def __del__(self) -> None:
        self.close()


def _checksum(data: bytes) -> int:
    from semistream.kernels.hashing import checksum_of

    array = np.frombuffer(data, np.uint8)
    return int(checksum_of(address_of(array), len(array))) if len(data) else 0
