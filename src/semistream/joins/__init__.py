"""The joins, by name. A new algorithm is one file and one line here."""

from semistream.contracts import Join
from semistream.joins.amesh import AMeshJoin
from semistream.joins.derakhshan import DerakhshanJoin
from semistream.joins.hybrid import HybridJoin
from semistream.joins.inl import IndexNestedLoopJoin
from semistream.joins.mesh import MeshJoin
from semistream.joins.moij import MemoryOptimisedIndexJoin
from semistream.joins.optimised_xhybrid import OptimisedXHybridJoin
from semistream.joins.partition import PartitionJoin
from semistream.joins.pcsrj import ParallelCacheJoin
from semistream.joins.reference import ReferenceJoin
from semistream.joins.rmesh import RMeshJoin
from semistream.joins.ssbj import SemiStreamBalancedJoin
from semistream.joins.sscj import SemiStreamCacheJoin
from semistream.joins.ssij import SemiStreamIndexJoin
from semistream.joins.sweep import SweepJoin
from semistream.joins.tuned_xhybrid import TunedXHybridJoin
from semistream.joins.xhybrid import XHybridJoin

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
