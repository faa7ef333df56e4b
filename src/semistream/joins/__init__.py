"""The joins, by name. A new algorithm is one file and one line here."""

from semistream.joins.contract import Join
from semistream.joins.papers.amesh import AMeshJoin
from semistream.joins.papers.derakhshan import DerakhshanJoin
from semistream.joins.papers.hybrid import HybridJoin
from semistream.joins.papers.inl import IndexNestedLoopJoin
from semistream.joins.papers.mesh import MeshJoin
from semistream.joins.papers.moij import MemoryOptimisedIndexJoin
from semistream.joins.papers.optimised_xhybrid import OptimisedXHybridJoin
from semistream.joins.papers.partition import PartitionJoin
from semistream.joins.papers.pcsrj import ParallelCacheJoin
from semistream.joins.papers.rmesh import RMeshJoin
from semistream.joins.papers.ssbj import SemiStreamBalancedJoin
from semistream.joins.papers.sscj import SemiStreamCacheJoin
from semistream.joins.papers.ssij import SemiStreamIndexJoin
from semistream.joins.papers.tuned_xhybrid import TunedXHybridJoin
from semistream.joins.papers.xhybrid import XHybridJoin
from semistream.joins.sweep.join import SweepJoin
from semistream.joins.whole import ReferenceJoin

_ALL: tuple[type[Join], ...] = (
    ReferenceJoin,
    IndexNestedLoopJoin,
    DerakhshanJoin,
    MeshJoin,
    AMeshJoin,
    RMeshJoin,
    HybridJoin,
    XHybridJoin,
    TunedXHybridJoin,
    OptimisedXHybridJoin,
    SemiStreamCacheJoin,
    MemoryOptimisedIndexJoin,
    SemiStreamBalancedJoin,
    SemiStreamIndexJoin,
    PartitionJoin,
    ParallelCacheJoin,
    SweepJoin,
)
JOINS: dict[str, type[Join]] = {join.name: join for join in _ALL}

__all__ = ["JOINS", "IndexNestedLoopJoin", "ReferenceJoin", "SweepJoin"]
