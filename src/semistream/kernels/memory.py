"""Raw memory for kernels: loads, stores and copies at any address, and reads of a file into it.

The rows on a page are packed, and numba's typed arrays cannot load an unaligned 64-bit word from a byte buffer in one
instruction; a byte loop costs about 1 ns a byte.
"""

# The intrinsics' bodies have the shape that numba's code generator calls for: (context, builder, signature, arguments).
# ruff: noqa: ARG001

from typing import Any

from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

from semistream.kernels.jit import inline


def _access(kind: types.Integer) -> tuple[Any, Any]:
    """Load and store of a value of this type."""

    @intrinsic
    def load(typing_context, address):
        def body(context, builder, signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.IntType(kind.bitwidth).as_pointer())
            return builder.load(pointer, align=1)

        return kind(types.int64), body

    @intrinsic
    def store(typing_context, address, value):
        def body(context, builder, signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.IntType(kind.bitwidth).as_pointer())
            builder.store(arguments[1], pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, kind), body

    return load, store


load_u8, store_u8 = _access(types.uint8)
load_u16, store_u16 = _access(types.uint16)
load_u32, store_u32 = _access(types.uint32)
load_u64, store_u64 = _access(types.uint64)


@intrinsic
def copy_bytes(typing_context, destination, source, count):
    """memcpy(destination, source, count); the two must not overlap."""

    def body(context, builder, signature, arguments):
        byte_pointer = ir.IntType(8).as_pointer()
        target, origin = (builder.inttoptr(address, byte_pointer) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, origin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), body


@inline
def copy_value(target, source, width):
    """Copy one fixed-width value; the usual widths are single moves."""
    if width == 8:
        store_u64(target, load_u64(source))
    elif width == 4:
        store_u32(target, load_u32(source))
    elif width == 1:
        store_u8(target, load_u8(source))
    elif width == 2:
        store_u16(target, load_u16(source))
    elif width == 16:
        store_u64(target, load_u64(source))
        store_u64(target + 8, load_u64(source + 8))
    else:
        copy_bytes(target, source, width)


@intrinsic
def _word_pointer(typing_context, address):
    def body(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.uint64)(types.int64), body


@inline
def words_at(address, count):
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
