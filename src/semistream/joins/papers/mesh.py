"""MESHJOIN (Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell 2008): the first semi-stream join.

Idea: R is scanned cyclically, b pages a step; w stream tuples enter with every step and stay until the scan has come
round. So one sequential read is shared by all tuples in memory, and no index is asked.
Budget: index (in memory anyway), buffer of b pages, output; the rest are k·w slots of H with their places in the queue.
Cost: c_loop = c_IO(b) + w(c_E + c_S + c_A) + b(v_P/v_R)(c_H + σ·c_O), μ = w/c_loop; the stream's skew is of no matter.
Invariants: a packet is probed by exactly k consecutive chunks, together R once; |H| ≤ k·w; all leaves within k steps.
Departures: short and empty packets when the stream has less (the printed loop would stop the scan); a chunk is not
read when nobody waits; chunks end between keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from semistream.errors import ArgumentError
from semistream.joins.contract import JoinSettings
from semistream.joins.papers.loops import ScanJoin


@dataclass(frozen=True)
class MeshSettings(JoinSettings):
    """The disk buffer's share of the budget, up to a mebibyte: b of the paper, which `semistream tune mesh` finds."""

    buffer_share: float = ScanJoin.buffer_share

    def __post_init__(self) -> None:
        if not 0 <= self.buffer_share <= 0.9:
            raise ArgumentError(f"buffer_share={self.buffer_share} must be between 0 and 0.9")


class MeshJoin(ScanJoin):
    name = "mesh"
    idea = "R is scanned round and round; a tuple stays until the scan has come round"
    settings_type = MeshSettings
