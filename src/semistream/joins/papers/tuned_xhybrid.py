"""Tuned X-HYBRIDJOIN (Naeem): X-HYBRIDJOIN whose two parts have sizes of their own, k swappable and l pinned pages.

Budget: as X-HYBRIDJOIN, with shares for the swappable and the pinned part, which `semistream tune tuned_xhybrid` finds.
Cost, invariants and departures are those of `xhybrid`.
"""

from __future__ import annotations

from dataclasses import dataclass

from semistream.budget import Budget
from semistream.errors import ArgumentError
from semistream.joins.contract import JoinSettings, Prediction, Profile
from semistream.joins.papers.xhybrid import XHybridJoin
from semistream.lookup.bind import LookupPlan
from semistream.stores.contract import Store, StoreFacts


@dataclass(frozen=True)
class TunedXHybridSettings(JoinSettings):
    """Shares of the budget for the pinned and the swappable part."""

    pinned: float = 0.2
    swappable: float = 0.02

    def __post_init__(self) -> None:
        for name in ("pinned", "swappable"):
            if not 0 < getattr(self, name) < 0.9:
                raise ArgumentError(f"{name}={getattr(self, name)} must be a share between 0 and 0.9")


class TunedXHybridJoin(XHybridJoin):
    """Both parts have sizes of their own; see the module."""

    name = "tuned_xhybrid"
    idea = "X-HYBRIDJOIN with tuned sizes of its two parts"
    settings_type = TunedXHybridSettings

    def __init__(self, store: Store, plan: LookupPlan, budget: Budget, settings: JoinSettings | None = None) -> None:
        chosen = TunedXHybridSettings.of(settings)
        super().__init__(store, plan, budget, settings, chosen.swappable, chosen.pinned)

    @classmethod
    def predict(
        cls,
        facts: StoreFacts,
        plan: LookupPlan,
        memory_bytes: int,
        profile: Profile,
        settings: JoinSettings | None = None,
    ) -> Prediction:
        """See `predict_with`."""
        chosen = TunedXHybridSettings.of(settings)
        return cls.predict_with(facts, plan, memory_bytes, profile, chosen.swappable, chosen.pinned)
