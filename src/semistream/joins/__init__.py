"""The joins, by name. A new algorithm is one file and one line here."""

from semistream.contracts import Join
from semistream.joins.hybrid import HybridJoin
from semistream.joins.inl import IndexNestedLoopJoin
from semistream.joins.reference import ReferenceJoin
from semistream.joins.sweep import SweepJoin

JOINS: dict[str, type[Join]] = {join.name: join for join in (ReferenceJoin, IndexNestedLoopJoin, HybridJoin, SweepJoin)}

__all__ = ["JOINS", "IndexNestedLoopJoin", "ReferenceJoin", "SweepJoin"]
