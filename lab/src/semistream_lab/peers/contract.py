"""What a peer is, and what peers that look keys up have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.budget import parse_bytes
from semistream.stats import Stats
from semistream.stores import MasterStore
from semistream_lab.cells import Cell, enriched
from semistream_lab.data import BenchData
from semistream_lab.errors import BenchmarkError

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Peer:
    """``prepare`` makes its copy of the master and returns it; ``missing`` says what to install, None if nothing."""

    idea: str
    prepare: Callable[[BenchData, str], Path]
    run: Callable[[Cell, BenchData], dict[str, Any]]
    missing: Callable[[], str | None] = lambda: None


def needs_package(name: str) -> Callable[[], str | None]:
    """For a peer that is a package of the extra `peers`."""
    return lambda: None if find_spec(name) else "not installed: pip install 'semistream-lab[peers]'"


def in_process(kind: Any) -> Callable[[Cell, BenchData], dict[str, Any]]:
    """Runs an arm as `bench core` runs its own."""

    def run(cell: Cell, data: BenchData) -> dict[str, Any]:
        from semistream_lab import arms_core

        return arms_core.run(cell, data, kind)

    return run


def added_schema(data: BenchData, columns: str) -> pa.Schema:
    """The columns that are added to the stream."""
    first = next(iter(MasterStore.open(data.store()).scan()))
    return pa.schema([first.schema.field(name) for name in enriched(columns)])


def rows_of(data: BenchData, columns: str) -> Iterator[pa.RecordBatch]:
    """The master in key order: its key, then the columns that are asked for."""
    names = ["key", *enriched(columns)]
    for batch in MasterStore.open(data.store()).scan():
        yield batch.select(names)


class LookupArm(ABC):
    """Looks up every key of a batch once, in their order: what helps whoever keeps rows in key order."""

    def __init__(self, cell: Cell, data: BenchData, schema: pa.Schema) -> None:
        del schema
        self.budget = parse_bytes(cell.params["memory"], whole=MasterStore.open(data.store()).bytes)
        self.added = added_schema(data, cell.params["columns"])
        self._stats = Stats()

    @abstractmethod
    def get(self, keys: Keys) -> list[pa.Array]:
        """The columns of some keys, which are in order, each once, and all there."""

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batch by batch."""
        for batch in batches:
            keys, place = np.unique(batch.column("key").to_numpy(), return_inverse=True)
            found = self.get(keys)
            if any(len(column) != len(keys) for column in found):
                raise BenchmarkError("some keys were not found; every key has one match here")
            self._stats.rows_in += batch.num_rows
            self._stats.matched += batch.num_rows
            taken = [column.take(pa.array(place)) for column in found]
            names = [*batch.schema.names, *self.added.names]
            yield pa.RecordBatch.from_arrays([*batch.columns, *taken], names=names)

    def counters(self) -> Stats:
        """Rows and matches."""
        return self._stats.copy()

    def details(self) -> dict[str, Any]:
        """The budget that it was given."""
        return {"budget_bytes": self.budget}
