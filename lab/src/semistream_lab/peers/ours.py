"""semistream's own join, one thread, on a store with a column group: others keep only the columns asked for, too."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from semistream_lab.arms_core import OurArm
from semistream_lab.cells import Cell
from semistream_lab.data import BenchData
from semistream_lab.peers.contract import Peer, in_process


class Ours(OurArm):
    """`sweep_groups`, which gets the batches as a stream."""

    def __init__(self, cell: Cell, data: BenchData, schema: pa.Schema) -> None:
        super().__init__(Cell(cell.suite, "sweep_groups", cell.params, cell.repetition), data, schema)


def prepare(data: BenchData, columns: str) -> Path:
    """The store."""
    return data.store(columns)


PEER = Peer("semistream's <code>join</code>, one thread", prepare, in_process(Ours))
