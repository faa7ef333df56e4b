"""Counters of a join, and the accounting rule that they must satisfy.

>>> stats = Stats(rows_in=3, matched=2, unmatched=1)
>>> stats.check()
>>> (stats + Stats(rows_in=1, shed=1)).as_dict()["rows_in"]
4
"""

from dataclasses import asdict, dataclass, fields, replace

from semistream.errors import AccountingError

WENT = ("matched", "unmatched", "shed")  # a row of the stream counts in exactly one of these
_LEVELS = ("cached_rows", "cached_bytes", "peak_bytes", "master_version")  # states, not flows: the largest counts


@dataclass
class ReadCounters:
    """What reading has cost so far."""

    pages: int = 0
    requests: int = 0
    bytes: int = 0


@dataclass
class Stats:
    """What happened to the rows of the stream, and what it cost."""

    rows_in: int = 0
    matched: int = 0
    unmatched: int = 0
    shed: int = 0
    rows_out: int = 0
    hits: int = 0
    misses: int = 0
    sweeps: int = 0
    pages_read: int = 0
    read_requests: int = 0
    bytes_read: int = 0
    cached_rows: int = 0
    cached_bytes: int = 0
    peak_bytes: int = 0
    master_version: int = 0

    @property
    def hit_ratio(self) -> float:
        """Share of the probes that the cache answered."""
        probes = self.hits + self.misses
        return self.hits / probes if probes else 0.0

    def move_to(self, other: "Stats") -> None:
        """Add these counts to another's, and begin again at zero; states stay where they are."""
        for name in _FLOWS:
            if count := getattr(self, name):
                setattr(other, name, getattr(other, name) + count)
                setattr(self, name, 0)

    def count_reads(self, counters: ReadCounters) -> None:
        """What was read in all up to now."""
        self.pages_read, self.read_requests, self.bytes_read = counters.pages, counters.requests, counters.bytes

    def check(self, what: str = "join") -> None:
        """The accounting rule: every row that came in is accounted for exactly once."""
        accounted = sum(getattr(self, name) for name in WENT)
        if self.rows_in != accounted:
            counts = ", ".join(f"{name} {getattr(self, name):,}" for name in WENT)
            raise AccountingError(
                f"{what}: {self.rows_in:,} rows came in, but {accounted:,} are accounted for ({counts}); "
                "please report this"
            )

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    def copy(self) -> "Stats":
        return replace(self)

    def put_back(self, before: "Stats") -> None:
        """As they were when ``before`` was copied: what came since is done again."""
        vars(self).update(vars(before))

    def since(self, before: "Stats") -> "Stats":
        """What was added after ``before`` was copied; states stay as they are."""
        return replace(self, **{name: getattr(self, name) - getattr(before, name) for name in _FLOWS})

    def __add__(self, other: "Stats") -> "Stats":
        flows = {name: getattr(self, name) + getattr(other, name) for name in _FLOWS}
        return Stats(**flows, **{name: max(getattr(self, name), getattr(other, name)) for name in _LEVELS})


_FLOWS = tuple(f.name for f in fields(Stats) if f.name not in _LEVELS)
