"""Tuned X-HYBRIDJOIN (Naeem): X-HYBRIDJOIN whose two parts have sizes of their own, k swappable and l pinned pages.

Budget: as X-HYBRIDJOIN, with shares for the swappable and the pinned part, which `semistream tune tuned_xhybrid` finds.
Cost, invariants and departures are those of `xhybrid`.
"""

from dataclasses import dataclass

from semistream.errors import ArgumentError
from semistream.joins.contract import JoinSettings
from semistream.joins.papers.waiting_join import Shares
from semistream.joins.papers.xhybrid import XHybridJoin


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
    name = "tuned_xhybrid"
    idea = "X-HYBRIDJOIN with tuned sizes of its two parts"
    settings_type = TunedXHybridSettings
    buffer_setting = "swappable"

    @classmethod
    def pinned_bytes(cls, shares: Shares) -> int:
        return int(shares.spare * TunedXHybridSettings.of(shares.scenario.settings).pinned)
