"""What every algorithm offers (`Join`), and what its cost model says of a stream (`Prediction`)."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, Self

import pyarrow as pa

from semistream.budget import Budget
from semistream.errors import AccountingError, ArgumentError, InvariantError
from semistream.lookup.bind import LookupPlan
from semistream.stats import Stats
from semistream.stores.contract import Ability, Store, StoreFacts, check_abilities


class Front(Protocol):
    """An operator in front of a join, which takes rows out of its stream."""

    count: int  # rows taken out so far

    def kept(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that are joined."""


@dataclass(frozen=True)
class JoinSettings:
    """What can be set of a join; each that has settings extends it."""

    @classmethod
    def of(cls, settings: "JoinSettings") -> Self:
        """Those of a scenario, of which `Join.settings_of` has made sure that they are of this type."""
        assert isinstance(settings, cls)
        return settings


class Join(ABC):
    """An algorithm: built from a store, a plan and a budget; joins batches; counts; checks itself.

    What it keeps between two calls of `join` (a cache, say) stays in the object. It never depends on input to make
    progress: a batch without rows says that nothing came for a while, and a join that lets rows wait gives them out
    then (`sweep`: when their deadline has passed).
    """

    name: ClassVar[str]
    idea: ClassVar[str]
    settings_type: ClassVar[type[JoinSettings] | None] = None
    settings: JoinSettings
    needs: ClassVar[frozenset[Ability]] = frozenset()  # of the store
    takes_conditions: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = False

    def __init__(self, store: Store, plan: LookupPlan, budget: Budget, settings: JoinSettings | None = None) -> None:
        self.settings = self.settings_of(settings)
        check_abilities(f"algorithm={self.name!r}", self.needs, store)
        self.store = store
        self.facts = store.facts
        self.plan = plan
        self.budget = budget
        budget.check_least(self.name, self.least_bytes(store.facts, plan))
        self.scenario = Scenario(store.facts, plan, budget.total, settings=self.settings)
        self.unmatched_sample: list[object] = []  # a few keys that found no match, for messages
        self.stats = Stats(master_version=store.version)
        self.front: Front | None = None
        self._set_up()
        self.stats.peak_bytes = budget.peak

    def _set_up(self) -> None:  # noqa: B027 - `WholeJoin` and `SweepJoin` do it as they are made
        """Take the parts of the budget, and make what the algorithm works with."""

    def join(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """Join a stream: pulls batches when it wants them, and has given out everything when they end. A stream that is
        abandoned, by its reader or by an error, leaves nothing behind for the next one.
        """
        before = self.front.count if self.front is not None else 0
        try:
            yield from self._run(batches if self.front is None else self.front.kept(batches))
        except BaseException:
            self._start_afresh()
            raise
        finally:
            if self.front is not None:
                shed = self.front.count - before
                self.stats.shed += shed
                self.stats.rows_in += shed

    @abstractmethod
    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The algorithm; yields batches of the plan's output, in any order."""

    def _start_afresh(self) -> None:
        """Forget rows that have not been given out, as if they had never come."""
        self.stats.rows_in = self.stats.matched + self.stats.unmatched + self.stats.shed

    def due(self) -> float | None:
        """Seconds until a row that waits must leave, infinity when none waits; None where the join does not say."""
        return None

    @classmethod
    @abstractmethod
    def least_bytes(cls, facts: StoreFacts, plan: LookupPlan) -> int:
        """The smallest budget this algorithm works in, for one row at a time."""

    @classmethod
    def predict(
        cls,
        facts: StoreFacts,
        plan: LookupPlan,
        memory_bytes: int,
        profile: "Profile",
        settings: JoinSettings | None = None,
    ) -> "Prediction":
        """The cost model's answer: hits and tuples per read on such a stream, and the division of the budget."""
        return cls.model(Scenario(facts, plan, memory_bytes, profile, cls.settings_of(settings)))

    @classmethod
    @abstractmethod
    def model(cls, scenario: "Scenario") -> "Prediction":
        """The cost model; see `predict`."""

    @classmethod
    def settings_of(cls, settings: JoinSettings | None) -> JoinSettings:
        """The settings that were given, if they are this join's, or the defaults."""
        kind = cls.settings_type
        if settings is None:
            return JoinSettings() if kind is None else kind()
        if kind is None or not isinstance(settings, kind):
            takes = f"a {kind.__name__}" if kind else "none"
            raise ArgumentError(f"settings={settings!r} do not suit algorithm {cls.name!r}, which takes {takes}")
        return settings

    def check(self) -> None:
        """Raise when an invariant does not hold; after every run in tests."""
        stats = self.stats
        stats.check(self.name)
        most = {"semi": stats.matched, "anti": stats.unmatched}.get(self.plan.how)
        if most is not None and stats.rows_out > most:  # fewer, when a reader has left a stream
            raise AccountingError(
                f"{self.name}: how={self.plan.how!r} has {most:,} rows to give out, but gave {stats.rows_out:,}; "
                "please report this"
            )

    def _ensure(self, *, holds: bool, said: str) -> None:
        """For `check`: an invariant, and what is wrong where it does not hold."""
        if not holds:
            raise InvariantError(f"{self.name}: {said}")


@dataclass(frozen=True)
class Profile:
    """What a cost model knows of a stream: its Zipf exponent, and whether R's keys lie in order of popularity."""

    skew: float = 1.0
    ranked: bool = False


@dataclass(frozen=True)
class Scenario:
    """What a cost model is asked about, and by what a join divides its budget."""

    facts: StoreFacts
    plan: LookupPlan
    memory_bytes: int
    profile: Profile = field(default_factory=Profile)
    settings: JoinSettings = field(default_factory=JoinSettings)
    part: float = 1.0  # of R's keys and pages, where several nodes share them


@dataclass(frozen=True)
class Prediction:
    """What a cost model counts: hits, and how many stream tuples a read of R serves (infinitely many without reads)."""

    hit_ratio: float
    tuples_per_read: float
    pages_per_read: float
    parts: dict[str, int]
    remark: str = ""
    nodes: int = 1
    piece_rows: int = 32_768  # rows worked on at once; small budgets make small pieces
    gap_pages: float = 0.0  # of a read: pages between those asked for, read along
    far_ratio: float = 0.0  # of the stream: what lies in memory only, out of the processor's own caches

    @property
    def tuples_per_page(self) -> float:
        """Stream tuples per page: comparable between joins whose reads differ in size."""
        return self.tuples_per_read / self.pages_per_read
