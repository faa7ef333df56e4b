"""The compiler settings of every kernel, and where its machine code is kept.

Kernels have eager signatures and lie in numba's on-disk cache, so a Python worker loads machine code instead of
compiling. They take addresses and plain arrays, never Python objects, and release the GIL. The cache is NUMBA_CACHE_DIR
if that is set, else beside the code or in the user's home; where none of these can be written, a private temporary
directory: machine code is loaded from it, so it must belong to this user alone.
"""

import atexit
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import config, njit  # type: ignore[attr-defined]

from semistream import kernels

kernels.listen()
_HERE = Path(__file__).parent
_NEWEST = max(path.stat().st_mtime_ns for path in _HERE.glob("*.py"))  # of the sources


def _forget_stale_code() -> None:
    """Remove code older than any source: numba looks at a function's own file, not at those of what it inlined."""
    for index in (_HERE / "__pycache__").glob("*.nbi"):
        with suppress(OSError):
            if index.stat().st_mtime_ns < _NEWEST:
                index.unlink()


def _private_place() -> Path | None:
    """A temporary directory that only this user can write to; None when there is no such place."""
    try:
        place = Path(tempfile.gettempdir()) / f"semistream-kernels-{os.getuid()}-{_NEWEST:x}"
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
        found = place.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o700:
            return place
        place = Path(tempfile.mkdtemp(prefix="semistream-kernels-"))  # the name was taken by somebody else
        atexit.register(shutil.rmtree, place, ignore_errors=True)
    except OSError:
        return None
    return place


def _can_be_kept() -> bool:
    """Does numba find a place for compiled code?"""
    try:
        njit(lambda: None, cache=True)
    except RuntimeError:
        return False
    return True


_forget_stale_code()
temporary_place: Path | None = None
if not _can_be_kept():
    temporary_place = _private_place()
    config.CACHE_DIR = str(temporary_place or "")  # type: ignore[attr-defined]
_kept = _can_be_kept()


def kernel(*signatures: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile at import from eager signatures, or load from the on-disk cache."""
    return njit(list(signatures), cache=_kept, nogil=True, boundscheck=False, error_model="numpy")


def inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """A small function that kernels call and LLVM inlines."""
    return njit(function, cache=_kept, nogil=True, boundscheck=False, error_model="numpy")
