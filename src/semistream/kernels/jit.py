"""The compiler settings of every kernel, and raw memory access for them.

Kernels are compiled from eager signatures and kept in numba's on-disk cache, so a Python worker loads machine code
instead of compiling. They take addresses and plain arrays, never Python objects, and release the GIL. The cache lies in
NUMBA_CACHE_DIR if that is set, else beside the code or in the user's home; where none of these can be written, in a
private temporary directory. Machine code is loaded from it, so it must belong to this user alone.

The memory intrinsics exist because the rows on a page are packed: numba's typed arrays cannot load an unaligned
64-bit word from a byte buffer in one instruction, and a byte loop costs about 1 ns a byte.
"""

# The intrinsics' bodies have the shape that numba's code generator calls for: (context, builder, signature, arguments).
# ruff: noqa: ARG001

import atexit
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import carray, config, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

from semistream.kernels import notice

notice.listen()


def _forget_stale_code() -> None:
    """Remove compiled code that is older than any kernel's source.

    numba looks only at the file of the function itself; but what it compiled holds copies of inlined functions of other
    files as well.
    """
    here = Path(__file__).parent
    newest = max(path.stat().st_mtime for path in here.glob("*.py"))
    for index in (here / "__pycache__").glob("*.nbi"):
        with suppress(OSError):
            if index.stat().st_mtime < newest:
                index.unlink()


def _private_place() -> Path | None:
    """A temporary directory that only this user can write to; None when there is no such place."""
    newest = max(path.stat().st_mtime_ns for path in Path(__file__).parent.glob("*.py"))
    try:
        place = Path(tempfile.gettempdir()) / f"semistream-kernels-{os.getuid()}-{newest:x}"
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


def _loader(bits: int, result: Any) -> Any:
    @intrinsic
    def load(typing_context, address):
        def body(context, builder, signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=1)

        return result(types.int64), body

    return load


def _storer(bits: int, value_type: Any) -> Any:
    @intrinsic
    def store(typing_context, address, value):
        def body(context, builder, signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            builder.store(arguments[1], pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, value_type), body

    return store


load_u8 = _loader(8, types.uint8)
load_u16 = _loader(16, types.uint16)
load_u32 = _loader(32, types.uint32)
load_u64 = _loader(64, types.uint64)
store_u8 = _storer(8, types.uint8)
store_u16 = _storer(16, types.uint16)
store_u32 = _storer(32, types.uint32)
store_u64 = _storer(64, types.uint64)


@intrinsic
def copy_bytes(typing_context, destination, source, count):
    """memcpy(destination, source, count); the two must not overlap."""

    def body(context, builder, signature, arguments):
        byte_pointer = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(arguments[0], byte_pointer),
            builder.inttoptr(arguments[1], byte_pointer),
            arguments[2],
            1,
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), body


@intrinsic
def _word_pointer(typing_context, address):
    def body(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.uint64)(types.int64), body


@inline
def words_at(address, count):  # type: ignore[no-untyped-def]
    """``count`` 64-bit words at an address that is a multiple of eight, as an array: such loops become vector code."""
    return carray(_word_pointer(address), count)


@intrinsic
def prefetch(typing_context, address):
    """Ask for the cache line of an address before it is needed: probes of a large table wait on memory otherwise."""

    def body(context, builder, signature, arguments):
        i32 = ir.IntType(32)
        byte_pointer = ir.IntType(8).as_pointer()
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
        pointer = builder.inttoptr(arguments[0], byte_pointer)
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), body


pread = types.ExternalFunction("pread", types.int64(types.int32, types.int64, types.uint64, types.int64))
preadv2 = types.ExternalFunction(
    "preadv2", types.int64(types.int32, types.int64, types.int32, types.int64, types.int32)
)
