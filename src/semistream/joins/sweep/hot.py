"""Keys that were hot, kept between runs, so that a join is warm from its first batch.

A file is ``[header | keys]``: their codes and how often they came, the most frequent first. A join with an empty cache
offers it their rows. Codes are hints: one that the master no longer holds is not found, and a file that is missing,
damaged, another user's or of other keys means a cold start. It is written anew when the cache has grown by a quarter
since, or every five minutes; much less content replaces it only after an hour. Only what is missing, empty or a file of
hot keys is replaced: another file is refused, and what cannot be read is left alone.
"""

import glob
import os
import stat
import struct
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from semistream.budget import Budget
from semistream.durable import private
from semistream.errors import ArgumentError
from semistream.joins.sweep.cache import TupleCache
from semistream.keys import Codes

Counts = npt.NDArray[np.uint8]
_KEY = np.dtype([("code", "<u8"), ("count", "u1")])
_PIECE = 1_024  # keys of which a checksum is taken at once
_LEAST_KEYS = 64  # that are worth a piece
_WORK_BYTES = 48  # of a key that is read or written: as it is in the file, and sorted
_MOST_KEYS = 1 << 22
_GROWTH = 1.25
_SECONDS = 300.0  # the age at which a file is written again
_LONG_SECONDS = 3600.0  # the age at which it no longer matters how much it holds
_PART = "hot keys"


class _Header(NamedTuple):
    """What stands in front of the keys; the checksum is that of the header without it, and of the keys."""

    magic: bytes
    kind: bytes  # of the keys
    arrivals: int  # among which they came so often
    rows: int  # of the cache they were in
    keys: int
    checksum: int = 0

    @classmethod
    def read(cls, file: IO[bytes]) -> Self:
        return cls(*_HEADER.unpack(file.read(_HEADER.size)))


_HEADER = struct.Struct("<8s8sQQQQ")
_MAGIC = b"semihot1"


class HotKeys:
    """The file of one lookup."""

    def __init__(self, path: str | os.PathLike[str], key: object, budget: Budget) -> None:
        """``key`` says what the codes stand for: a file of other keys is not used."""
        self._path, self._budget = Path(path), budget
        self._kind = blake2b(repr(key).encode(), digest_size=8).digest()
        self._pause_ends = 0.0
        check_replaceable(path)

    def load(self, room: int, most: int) -> Iterator[tuple[Codes, Counts, int]]:
        """The keys in pieces of at most ``most`` whose codes ascend, how often each came, and among how many arrivals.
        None if no sound file of these keys is there, or ``room`` has no bytes for a piece.
        """
        try:
            with suppress(OSError, ValueError, struct.error), open(self._path, "rb", opener=_own_file) as file:
                about = _Header.read(file)
                sound = about[:2] == (_MAGIC, self._kind) and about.checksum == _checksum(file, about)
                if sound and (at_once := self._grant(room, min(most, about.keys))):
                    file.seek(_HEADER.size)
                    for piece in _pieces(file, at_once):
                        found = np.frombuffer(piece, _KEY)
                        codes, first = np.unique(found["code"], return_index=True)
                        yield codes, found["count"][first], about.arrivals
        finally:
            self._budget.release(_PART)

    def save(self, cache: TupleCache, room: int) -> None:
        """Write down what the cache holds, if it is time to; ``room`` has bytes for work on a piece of it."""
        paused = time.monotonic() < self._pause_ends
        if not paused and self._is_due(cache.rows) and (at_once := self._grant(room, _MOST_KEYS // 64)):
            try:
                if not self._write(cache, at_once):
                    self._pause_ends = time.monotonic() + _SECONDS
            finally:
                self._budget.release(_PART)

    def _grant(self, room: int, most: int) -> int:
        """Keys that are worked on at once; 0 where there is no room."""
        keys = min(max(most, _LEAST_KEYS), room // _WORK_BYTES)
        return keys if keys >= _LEAST_KEYS and self._budget.grant(_PART, keys * _WORK_BYTES) else 0

    def _is_due(self, rows: int) -> bool:
        """Is there something new to say of a cache with so many rows?"""
        try:
            with open(self._path, "rb", opener=_own_file) as file:
                if not _replaceable(file):
                    return False
                about, age = _Header.read(file), abs(time.time() - os.fstat(file.fileno()).st_mtime)
        except (FileNotFoundError, struct.error):
            return rows > 0
        except OSError:
            return False
        old = age > _LONG_SECONDS or (age > _SECONDS and rows >= about.rows / 2)
        ours = about[:2] == (_MAGIC, self._kind)  # of two lookups with one file neither drives the other out
        return rows > 0 and (old or (ours and rows >= _GROWTH * about.rows))

    def _write(self, cache: TupleCache, at_once: int) -> bool:
        """Did the file change? A join does not fail because there is no room for a hint."""
        draft = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex[:12]}")
        about = _Header(_MAGIC, self._kind, cache.arrivals_counted, cache.rows, 0)
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            for left in self._path.parent.glob(f".{glob.escape(self._path.name)}.{'[0-9a-f]' * 12}"):
                if abs(time.time() - left.lstat().st_mtime) > _LONG_SECONDS:
                    left.unlink()  # whoever wrote it was killed
            try:
                with open(draft, "x+b", opener=private) as file:
                    file.write(bytes(_HEADER.size))
                    for codes, counts in cache.hot_keys(at_once):
                        piece, order = np.empty(len(codes), _KEY), np.argsort(codes)
                        piece["code"], piece["count"] = codes[order], counts[order]
                        file.write(piece[: _MOST_KEYS - about.keys].tobytes())
                        about = about._replace(keys=(file.tell() - _HEADER.size) // _KEY.itemsize)
                    file.seek(0)
                    file.write(_HEADER.pack(*about._replace(checksum=_checksum(file, about))))
                    os.fsync(file.fileno())  # a file of zeros after a loss of power would be nobody's
                if about.keys:
                    draft.replace(self._path)
                    return True
            finally:
                draft.unlink(missing_ok=True)
        return False


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse a file that is none of hot keys, before a join begins that would replace it."""
    with suppress(OSError), open(path, "rb", opener=_own_file) as file:
        if not _replaceable(file):
            raise ArgumentError(
                f"hot_keys={str(path)!r} is a file of something else, which would be lost; give another path, or "
                "remove the file if nobody needs it"
            )


def _replaceable(file: IO[bytes]) -> bool:
    """Is it empty, or does it begin as files of hot keys do? The file is left at its start."""
    start = file.read(len(_MAGIC))
    file.seek(0)
    return start in (b"", _MAGIC)


def _own_file(path: str, flags: int) -> int:
    """An opener for a plain file of this user; another one, such as a pipe, does not make the join wait."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(handle)
        raise PermissionError(path)
    return handle


def _pieces(file: IO[bytes], keys: int) -> Iterator[bytes]:
    while content := file.read(keys * _KEY.itemsize):
        yield content


def _checksum(file: IO[bytes], about: _Header) -> int:
    """Of the header and the keys; the file is left at its start."""
    file.seek(_HEADER.size)
    total = zlib.crc32(_HEADER.pack(*about._replace(checksum=0)))
    for piece in _pieces(file, _PIECE):
        total = zlib.crc32(piece, total)
    file.seek(0)
    return total
