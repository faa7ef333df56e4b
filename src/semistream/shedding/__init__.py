"""Load shedding: what to leave for later when the stream is faster than the join, by name.

After section 4 of the MESHJOIN paper. Of an interval of n rows only w can be joined in time; a strategy says which.
The others are written to disk and loaded later (`semistream.warehouse.reconcile`): nothing is lost. A new strategy is
one file and one line here.
"""

from semistream.shedding.cluster_sample import ClusterSample
from semistream.shedding.keep_w import KeepW
from semistream.shedding.optimal_offline import OptimalOffline
from semistream.shedding.sample_w import SampleW
from semistream.shedding.strategy import Kept, OnlineStrategy, Strategy
from semistream.shedding.topw import TopW

_ALL: tuple[type[Strategy], ...] = (KeepW, SampleW, TopW, ClusterSample, OptimalOffline)
STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in _ALL}

from semistream.shedding.settings import Shed  # noqa: E402  - it looks the strategies up

__all__ = ["STRATEGIES", "Kept", "OnlineStrategy", "Shed", "Strategy"]
