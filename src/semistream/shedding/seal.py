"""A checksum of a whole Parquet file, inside the file.

Parquet has checksums for its pages only: a bit flipped in a header or in the footer may give other rows without an
error. So the footer's metadata gets a place of eight digits, and when the file is complete, the checksum of all its
other bytes is written there. For other readers of Parquet it is a piece of metadata that they pass over.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import IO

_MARK = b"semistream-seal:"
_OPEN = b"00000000"
_TAIL = struct.Struct("<I4s")  # how a Parquet file ends: the footer's length, and its magic
_CHUNK = 1 << 20


def unsealed() -> str:
    """The text to put into the metadata."""
    return (_MARK + _OPEN).decode()


def seal(file: IO[bytes]) -> None:
    """Fill in the checksum of a file that is complete."""
    place = _place(file)
    digits = _digits(file, place)
    file.seek(place)
    file.write(digits)
    file.flush()


def check_seal(file: IO[bytes]) -> None:
    """Raise a ValueError when a byte of the file is not as it was sealed."""
    place = _place(file)
    file.seek(place)
    if file.read(len(_OPEN)) != _digits(file, place):
        raise ValueError("its checksum does not fit")


def _place(file: IO[bytes]) -> int:
    """Where the digits are: after the last mark in the footer."""
    size = file.seek(0, os.SEEK_END)
    if size < _TAIL.size:
        raise ValueError("it is cut short")
    file.seek(size - _TAIL.size)
    length, _ = _TAIL.unpack(file.read(_TAIL.size))
    start = size - _TAIL.size - length
    if start < 0:
        raise ValueError("its footer is cut short")
    file.seek(start)
    found = file.read(length).rfind(_MARK)
    if found < 0:
        raise ValueError("it has no checksum, so semistream did not write it")
    return start + found + len(_MARK)


def _digits(file: IO[bytes], place: int) -> bytes:
    """The checksum of all bytes but the digits themselves."""
    check = 0
    for start, end in ((0, place), (place + len(_OPEN), file.seek(0, os.SEEK_END))):
        file.seek(start)
        while start < end:
            chunk = file.read(min(_CHUNK, end - start))
            if not chunk:
                raise ValueError("it is cut short")
            check = zlib.crc32(chunk, check)
            start += len(chunk)
    return f"{check:08x}".encode()
