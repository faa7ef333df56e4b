"""Packed rows: one tuple as consecutive bytes, on a page and in the cache alike.

A row is ``[null bits | a fixed slot per column | bytes of the variable-length values]``. A fixed slot holds the value
itself or, for a variable-length column, the end of its bytes counted from the first such byte (32 bits).
A random access to a packed row touches one or two cache lines; a column store would touch one per column.

Layouts are described by arrays: ``widths[c]`` (0 = variable), ``slots[c]`` (offset in the row), ``previous[c]`` (slot
of the variable column before, or -1), and ``head`` (bytes before the variable part).
"""

import numpy as np

from semistream.kernels.hashing import offset_at
from semistream.kernels.jit import inline, kernel
from semistream.kernels.memory import copy_bytes, copy_value, load_u8, load_u32, prefetch, store_u8, store_u32


@inline
def _is_valid(validity, index):
    return validity == 0 or (load_u8(validity + (index >> 3)) >> np.uint8(index & 7)) & np.uint8(1) != 0


@inline
def _set_null(row, column):
    address = row + (column >> 3)
    store_u8(address, np.uint8(load_u8(address) | (np.uint8(1) << np.uint8(column & 7))))


@inline
def _is_null(row, column):
    return (load_u8(row + (column >> 3)) >> np.uint8(column & 7)) & np.uint8(1) != 0


@inline
def row_length(row, head, last_variable_slot):
    """Bytes of a row; ``last_variable_slot`` is -1 when every column is of fixed width."""
    if last_variable_slot < 0:
        return head
    return head + np.int64(load_u32(row + last_variable_slot))


@kernel("void(int64, int64, int64, int64, int64[::1], int64, int64)")
def put_fixed(data, validity, bit_offset, width, rows, slot, column):
    """Write a fixed-width Arrow column into rows whose null bits are still clear."""
    for i in range(len(rows)):
        row = rows[i]
        if _is_valid(validity, bit_offset + i):
            copy_value(row + slot, data + width * i, width)
        else:
            _set_null(row, column)


@kernel("void(int64, int64, int64[::1])")
def add_lengths(offsets, offset_bytes, lengths):
    """Add the byte lengths of a variable-length Arrow column to the rows' lengths."""
    for i in range(len(lengths)):
        lengths[i] += offset_at(offsets, offset_bytes, i + 1) - offset_at(offsets, offset_bytes, i)


@kernel("void(int64, int64, int64, int64, int64, int64[::1], int64[::1], int64, int64, int64)")
def put_variable(data, offsets, offset_bytes, validity, bit_offset, rows, ends, head, slot, column):
    """Append a variable-length Arrow column to rows; ``ends`` holds how many variable bytes each row has so far."""
    for i in range(len(rows)):
        row = rows[i]
        if _is_valid(validity, bit_offset + i):
            start = offset_at(offsets, offset_bytes, i)
            count = offset_at(offsets, offset_bytes, i + 1) - start
            copy_bytes(row + head + ends[i], data + start, count)
            ends[i] += count
        else:
            _set_null(row, column)
        store_u32(row + slot, np.uint32(ends[i]))


@kernel("int64(int64[::1], int64, int64, int64, int64, uint8[::1])")
def take_fixed(rows, slot, column, width, out, valid):
    """Gather a fixed-width column from rows (address 0: no row, hence null); returns the number of nulls."""
    nulls = 0
    count = len(rows)
    for i in range(count):
        if i + 16 < count:
            prefetch(rows[i + 16] + slot)
        row = rows[i]
        target = out + width * i
        if row == 0 or _is_null(row, column):
            valid[i] = 0
            nulls += 1
            for b in range(width):
                store_u8(target + b, np.uint8(0))
        else:
            valid[i] = 1
            copy_value(target, row + slot, width)
    return nulls


@kernel("int64(int64[::1], int64, int64, int64, int64[::1], uint8[::1])")
def measure_variable(rows, slot, previous_slot, column, offsets, valid):
    """Fill the Arrow offsets of a variable-length column; returns the number of nulls."""
    nulls = 0
    total = 0
    offsets[0] = 0
    for i in range(len(rows)):
        row = rows[i]
        if row == 0 or _is_null(row, column):
            valid[i] = 0
            nulls += 1
        else:
            valid[i] = 1
            start = np.int64(0) if previous_slot < 0 else np.int64(load_u32(row + previous_slot))
            total += np.int64(load_u32(row + slot)) - start
        offsets[i + 1] = total
    return nulls


@kernel("void(int64[::1], int64, int64, int64[::1], int64)")
def take_variable(rows, previous_slot, head, offsets, out):
    """Copy the bytes of a variable-length column to where ``offsets`` says."""
    for i in range(len(rows)):
        count = offsets[i + 1] - offsets[i]
        if count > 0:
            row = rows[i]
            start = np.int64(0) if previous_slot < 0 else np.int64(load_u32(row + previous_slot))
            copy_bytes(out + offsets[i], row + head + start, count)


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def measure_projection(rows, columns, widths, slots, previous, lengths):
    """Add the variable bytes of the kept columns to each row's length."""
    for i in range(len(rows)):
        for k in range(len(columns)):
            column = columns[k]
            if widths[column] == 0:
                start = np.int64(0) if previous[column] < 0 else np.int64(load_u32(rows[i] + previous[column]))
                lengths[i] += np.int64(load_u32(rows[i] + slots[column])) - start


@inline
def project_row(row, target, columns, widths, slots, previous, head, new_slots, new_head):
    """Copy some columns of a row to a new, smaller row; returns the bytes written."""
    for b in range((len(columns) + 7) >> 3):
        store_u8(target + b, np.uint8(0))
    end = np.int64(0)
    for k in range(len(columns)):
        column = columns[k]
        if _is_null(row, column):
            _set_null(target, k)
            if widths[column] == 0:
                store_u32(target + new_slots[k], np.uint32(end))
        elif widths[column] == 0:
            start = np.int64(0) if previous[column] < 0 else np.int64(load_u32(row + previous[column]))
            count = np.int64(load_u32(row + slots[column])) - start
            copy_bytes(target + new_head + end, row + head + start, count)
            end += count
            store_u32(target + new_slots[k], np.uint32(end))
        else:
            copy_value(target + new_slots[k], row + slots[column], widths[column])
    return new_head + end


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[::1], int64, int64[::1])")
def project(rows, columns, widths, slots, previous, head, new_slots, new_head, targets):
    for i in range(len(rows)):
        project_row(rows[i], targets[i], columns, widths, slots, previous, head, new_slots, new_head)


@kernel("void(int64[::1], int64[::1], int64)")
def gather_rows(rows, lengths, out):
    for i in range(len(rows)):
        if i + 8 < len(rows):
            prefetch(rows[i + 8])
        copy_bytes(out, rows[i], lengths[i])
        out += lengths[i]
