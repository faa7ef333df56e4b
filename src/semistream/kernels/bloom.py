"""A blocked Bloom filter (Putze, Sanders, Singler 2007) of the master's keys: six bits in one 64-byte line per key.

At 10 bits per key about 1 % of the absent keys pass; a probe costs one cache line.
"""

import numpy as np

from semistream.kernels.hashing import mix64
from semistream.kernels.jit import inline, kernel

WORDS = 8
BITS = 6
_SEED = np.uint64(0x632BE59BD9B4E019)
_NINE = np.uint64(9)
_LINE_MASK = np.uint64(511)
_THIRTY_TWO = np.uint64(32)


@inline
def _place(words, code):
    """The first word of a code's line, and a hash that has its bits."""
    h = mix64(code ^ _SEED)
    line = np.int64(((h >> _THIRTY_TWO) * np.uint64(len(words) // WORDS)) >> _THIRTY_TWO)
    return line * WORDS, mix64(h)


@kernel("void(uint64[::1], uint64[::1])")
def bloom_add(words, codes):
    for i in range(len(codes)):
        base, g = _place(words, codes[i])
        for _ in range(BITS):
            bit = g & _LINE_MASK
            words[base + np.int64(bit >> np.uint64(6))] |= np.uint64(1) << (bit & np.uint64(63))
            g >>= _NINE


@kernel("void(uint64[::1], uint64[::1], boolean[::1])")
def bloom_test(words, codes, out):
    """True where the code may be there; False where it certainly is not."""
    for i in range(len(codes)):
        base, g = _place(words, codes[i])
        present = True
        for _ in range(BITS):
            bit = g & _LINE_MASK
            if words[base + np.int64(bit >> np.uint64(6))] & (np.uint64(1) << (bit & np.uint64(63))) == np.uint64(0):
                present = False
                break
            g >>= _NINE
        out[i] = present
