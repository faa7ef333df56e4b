"""f_R: how many rows of the master a key has, from the store's own data and within a bound of bytes.

The store's filter of keys tells absent ones (f_R = 0; about 1 % of them are taken for present). Where a key may have
several rows, one scan per version lists those that do, with their counts. In memory: 12 bytes per listed key, 10 bits
per key for the filter. Beyond the bound only the keys with the most rows are listed, all others count as their mean,
and the filter is left out when it does not fit beside them.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream import kernels
from semistream.joins.groups import groups_of
from semistream.joins.output import Indices
from semistream.keys import Codes
from semistream.stores.contract import Reader, Store

_ENTRY_BYTES = 12  # a code and a count
_LARGEST = np.iinfo(np.uint32).max
N = TypeVar("N", np.uint32, np.uint64)
Hold = Callable[[Callable[[], pa.Table]], pa.Table]


class RowCounts:
    """Rows per key, for one version of a store."""

    def __init__(self, store: Store, most_bytes: int, hold: Hold | None = None) -> None:
        """``hold`` may keep the counts elsewhere, for several processes; it calls what loads them when it has none."""
        self._store = store
        table = hold(lambda: _load(store, most_bytes)) if hold else _load(store, most_bytes)
        self.codes = _numbers(table, "codes", np.uint64)
        self.counts = _numbers(table, "counts", np.uint32)
        self.filter = _numbers(table, "filter", np.uint64)
        self.rest = float(table.column("rest")[0].as_py())
        self.nbytes = self.codes.nbytes + self.counts.nbytes + self.filter.nbytes

    def rows(self, codes: Codes) -> npt.NDArray[np.float64]:
        """How many rows each code has; for codes that are not listed, what such codes have on average."""
        result = np.full(len(codes), self.rest)
        if len(self.filter) and len(codes):
            present = np.empty(len(codes), np.bool_)
            kernels.bloom.bloom_test(self.filter, np.ascontiguousarray(codes), present)
            present |= self._store.in_deltas(codes)
            result[~present] = 0.0
        if len(self.codes):
            at = np.searchsorted(self.codes, codes)
            at[at == len(self.codes)] = 0
            listed = self.codes[at] == codes
            result[listed] = self.counts[at[listed]]
        return result


def _load(store: Store, most_bytes: int) -> pa.Table:
    codes, counts, rest = (np.empty(0, np.uint64), np.empty(0, np.uint32), 1.0)
    if not store.facts.unique:
        codes, counts, rest = _listed(store, max(1, most_bytes // _ENTRY_BYTES))
    room = most_bytes - codes.nbytes - counts.nbytes
    words = store.bloom() if 0 < store.facts.filter_bytes <= room else np.empty(0, np.uint64)
    values = {"codes": codes.tobytes(), "counts": counts.tobytes(), "filter": words.tobytes()}
    cells = {name: pa.array([value], pa.large_binary()) for name, value in values.items()}
    return pa.table({**cells, "rest": pa.array([rest])})


def _listed(store: Store, most: int) -> tuple[Codes, npt.NDArray[np.uint32], float]:
    """The keys with more than one row, at most ``most`` of them, and the mean rows of all other keys."""
    codes: Codes = np.empty(0, np.uint64)
    counts: Indices = np.empty(0, np.int64)
    keys = 0
    for some_codes, some_counts in _groups(store.reader()):
        keys += len(some_codes)
        several = some_counts > 1
        codes = np.concatenate([codes, some_codes[several]])
        counts = np.concatenate([counts, some_counts[several]])
        if len(codes) > 2 * most:
            codes, counts = _largest(codes, counts, most)
    codes, counts = _largest(codes, counts, most)
    order = np.argsort(codes)
    others = keys - len(codes)
    rest = (store.facts.rows - int(counts.sum())) / others if others else 1.0
    return codes[order], np.minimum(counts[order], _LARGEST).astype(np.uint32), rest


def _groups(reader: Reader) -> Iterator[tuple[Codes, Indices]]:
    """Every code once, with its number of rows. A code's rows follow each other, possibly over two chunks."""
    last_code: Codes = np.empty(0, np.uint64)  # which may go on in the next chunk
    last_count: Indices = np.empty(0, np.int64)
    for chunk, _ in reader.rows():
        if len(chunk) == 0:
            continue
        codes, first, last = groups_of(chunk)
        counts = last - first
        if len(last_code) and codes[0] == last_code[0]:
            counts[0] += last_count[0]
        else:
            yield last_code, last_count
        yield codes[:-1], counts[:-1]
        last_code, last_count = codes[-1:], counts[-1:]
    yield last_code, last_count


def _largest(codes: Codes, counts: Indices, most: int) -> tuple[Codes, Indices]:
    if len(codes) <= most:
        return codes, counts
    best = np.argpartition(counts, len(counts) - most)[len(counts) - most :]
    return codes[best], counts[best]


def _numbers(table: pa.Table, name: str, kind: type[N]) -> npt.NDArray[N]:
    """The numbers in the one cell of a column, without a copy."""
    return np.frombuffer(table.column(name)[0].as_buffer(), kind)
