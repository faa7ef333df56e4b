"""The joins, by name. A new algorithm is one file and one line here."""

from semistream.errors import choose
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
from semistream.joins.whole import WholeJoin

_ALL: tuple[type[Join], ...] = (
    WholeJoin,
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
FORMER_NAMES = {"reference": "whole"}  # in files that users have, and accepted wherever a join is named
ReferenceJoin = WholeJoin


def choose_join(argument: str, name: object, *others: str) -> str:
    """As `choose`, among the joins and ``others``; a former name becomes the present one.

    >>> choose_join("algorithm", "reference", "auto")
    'whole'
    """
    present = FORMER_NAMES.get(name, name) if isinstance(name, str) else name
    return choose(argument, present, (*others, *JOINS))


__all__ = ["FORMER_NAMES", "JOINS", "IndexNestedLoopJoin", "ReferenceJoin", "SweepJoin", "WholeJoin", "choose_join"]
