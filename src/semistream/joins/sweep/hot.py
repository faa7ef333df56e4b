"""Keys that were hot, kept between runs, so that a join is warm from its first batch.

A file has the codes of cached keys and how often each came. A join with an empty cache reads their rows and offers them
to the cache. Codes are hints: a key that the master no longer holds is not found, a missing or damaged file means a
cold start. The file is written anew when the cache has grown by a quarter since, or every five minutes.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.budget import Budget
from semistream.durable import private
from semistream.joins.sweep.cache import TupleCache
from semistream.keys import Codes

Counts = npt.NDArray[np.uint8]
_PIECE = 1_024  # keys whose rows are read together
_KEY_BYTES = 9
_MOST_ARRIVALS = 1 << 40  # that a damaged file can claim
_GROWTH = 1.25
_SECONDS = 300.0  # the age at which a file is written again
_LOOK_SECONDS = 1.0  # between two looks at the file
_PART = "hot keys"


class HotKeys:
    """The file of one lookup."""

    def __init__(self, path: str | os.PathLike[str], key: object, budget: Budget, clock: Callable[[], float]) -> None:
        """``key`` says what the codes stand for: a file of other keys is not used."""
        self._path, self._budget, self._clock = Path(path), budget, clock
        self._key = repr(key)
        self._looked = -_LOOK_SECONDS

    def load(self, room: int) -> Iterator[tuple[Codes, Counts, int]]:
        """The keys in pieces whose codes ascend, how often each came, and among how many arrivals.

        None if no file of these keys can be read, or ``room`` has no bytes for a piece; the rest of it is the cache's.
        """
        size = 2 * _PIECE * _KEY_BYTES
        if size > room or not self._budget.grant(_PART, size):
            return
        try:
            with suppress(OSError, pa.ArrowException, KeyError, ValueError), pa.OSFile(str(self._path)) as file:
                reader = pa.ipc.open_file(file)
                key, arrivals = (reader.schema.metadata[name].decode() for name in (b"key", b"arrivals"))
                for number in range(reader.num_record_batches if key == self._key else 0):
                    piece = reader.get_batch(number)
                    piece.validate(full=True)
                    codes, first = np.unique(piece.column("code").to_numpy().astype(np.uint64), return_index=True)
                    counts = piece.column("count").to_numpy().astype(np.uint8)[first]
                    if len(codes) <= _PIECE:
                        yield codes, counts, min(max(0, int(arrivals)), _MOST_ARRIVALS)
        finally:
            self._budget.release(_PART)

    def save(self, cache: TupleCache, room: int) -> None:
        """Write down what the cache holds, if it is time to: as many keys as ``room`` has bytes for."""
        if self._clock() < self._looked + _LOOK_SECONDS:
            return
        self._looked = self._clock()
        with suppress(OSError):
            known = self._path.stat()
            if cache.rows * _KEY_BYTES < _GROWTH * known.st_size and time.time() < known.st_mtime + _SECONDS:
                return
        most = min(cache.rows, room // (3 * _KEY_BYTES))
        if most <= 0 or not self._budget.grant(_PART, 3 * most * _KEY_BYTES):
            return
        try:
            with cache.reading() as usable:
                codes, counts = cache.hot_keys(most) if usable else (np.empty(0, np.uint64), np.empty(0, np.uint8))
            if len(codes):
                self._write(codes, counts, cache.arrivals_counted)
        finally:
            self._budget.release(_PART)

    def _write(self, codes: Codes, counts: Counts, arrivals: int) -> None:
        order = np.argsort(codes)
        about = {"key": self._key, "arrivals": str(arrivals)}
        table = pa.table({"code": codes[order], "count": counts[order]}).replace_schema_metadata(about)
        draft = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex[:12]}")
        with suppress(OSError):  # a join does not fail because there is no room for a hint
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                with open(draft, "xb", opener=private) as file, pa.ipc.new_file(file, table.schema) as writer:
                    writer.write_table(table, max_chunksize=_PIECE)
                draft.replace(self._path)
            finally:
                draft.unlink(missing_ok=True)
