"""Load shedding: what to leave for later when the stream is faster than the join, by name.

After section 4 of the MESHJOIN paper: of an interval of n rows only w can be joined in time, and a strategy says which.
The others are on disk until `semistream reconcile`. A new strategy is one file here and one line in `settings`.
"""

from semistream.shedding.settings import STRATEGIES, Shed
from semistream.shedding.strategy import Kept, Strategy

__all__ = ["STRATEGIES", "Kept", "Shed", "Strategy"]
