"""Values from the tuple cache: found or missing; those that vary in size are measured, put together, cut into rows."""

import numpy as np

from semistream.kernels import cache as k
from semistream.kernels.cache import cell_at, is_sound, next_cell
from semistream.kernels.jit import kernel
from semistream.kernels.memory import copy_bytes, load_u8, load_u32, load_u64
from semistream.kernels.rows import row_length


@kernel("void(int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])")
def measure_values(header, values, head, last_variable_slot, counts, sizes):
    """For found values (addresses from ``probe``): rows in each, and bytes to copy out where the value spans cells."""
    part_bytes = header[k.CELL_BYTES] - header[k.VALUE_AT]
    for i in range(len(values)):
        value = values[i]
        length = np.int64(load_u32(value - header[k.VALUE_AT] + 12)) if not header[k.SIMPLE] else part_bytes
        sizes[i] = length if length > part_bytes else 0
        counts[i] = 0
        position = 0
        while sizes[i] == 0 and position < length:
            position += row_length(value + position, head, last_variable_slot)
            counts[i] += 1


@kernel("void(int64[::1], int64[::1], int64[::1], int64, int64, int64[::1])")
def copy_values(header, values, targets, head, last_variable_slot, counts):
    """Copy values that span several cells to targets[i] and count their rows; 0 leaves a value where it is. A value
    whose cells are damaged gets a target of -1 and no rows.
    """
    part_bytes = header[k.CELL_BYTES] - header[k.VALUE_AT]
    for i in range(len(values)):
        if targets[i] == 0:
            continue
        cell = values[i] - header[k.VALUE_AT]
        code = load_u64(cell)
        length = np.int64(load_u32(cell + 12))
        done = 0
        while True:
            part = min(part_bytes, length - done)
            copy_bytes(targets[i] + done, cell + header[k.VALUE_AT], part)
            done += part
            if done == length:
                break
            following = next_cell(header, cell)
            if following == k.NONE64:
                break
            cell = cell_at(header, following)
            if load_u64(cell) != code or load_u8(cell + 8) != k.MORE or not is_sound(header, cell):
                break
        if done < length:
            targets[i] = -1
            continue
        position = 0
        while position < length:
            position += row_length(targets[i] + position, head, last_variable_slot)
            counts[i] += 1


@kernel("void(int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])")
def spread_values(values, counts, head, last_variable_slot, out_index, out_rows):
    """One (value index, row address) pair per row."""
    n = 0
    for i in range(len(values)):
        position = 0
        for _ in range(counts[i]):
            out_index[n] = i
            out_rows[n] = values[i] + position
            position += row_length(values[i] + position, head, last_variable_slot)
            n += 1


@kernel("int64(int64[::1], uint64[::1], int64[::1], uint64[::1], int64[::1])")
def found_values(values, codes, rows, their_codes, their_values):
    """Which values were found, with their codes; returns how many."""
    n = 0
    for i in range(len(values)):
        if values[i] > k.ROW_ABSENT:
            rows[n], their_codes[n], their_values[n] = i, codes[i], values[i]
            n += 1
    return n


@kernel("int64(int64[::1], uint64[::1], int64[::1], uint64[::1])")
def missing_values(values, codes, rows, their_codes):
    """Which values are missing, with their codes; returns how many."""
    n = 0
    for i in range(len(values)):
        if values[i] == k.ROW_MISSING:
            rows[n], their_codes[n] = i, codes[i]
            n += 1
    return n
