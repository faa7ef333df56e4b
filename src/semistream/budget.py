"""One number of bytes for everything a join keeps: index, buffers, cache and window together.

Parts ask for grants. A grant refused is answered by evicting, sweeping earlier or spilling, never by overrunning.

>>> budget = Budget("1KB")
>>> budget.grant("window", 600)
True
>>> budget.grant("cache", 600)
False
>>> budget.free, budget.peak
(400, 600)
"""

import math
import re
from collections.abc import Callable

from semistream.errors import ArgumentError, MemoryBudgetError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "k": 10**3, "m": 10**6, "g": 10**9}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z%]*)\s*", re.IGNORECASE)


def parse_bytes(memory: int | str, whole: int | None = None, name: str = "memory") -> int:
    """Bytes from ``268435456``, ``"256MB"`` or, of a whole that is given, ``"10%"``; ``name`` is the setting's.

    >>> parse_bytes("256MB"), parse_bytes("1.5 GiB"), parse_bytes("10%", whole=2000)
    (256000000, 1610612736, 200)
    """
    share = "" if whole is None else ", or a share of the master such as '10%'"
    wanted = f"give bytes as a number or a size such as '256MB' or '1GiB'{share}"
    found = _SIZE.fullmatch(memory) if isinstance(memory, str) else None
    if isinstance(memory, int) and not isinstance(memory, bool):
        size = memory
    elif found is None or found[2].lower() not in ("%", *_UNITS):
        raise ArgumentError(f"{name}={memory!r} is not a size; {wanted}")
    elif found[2] != "%":
        size = int(float(found[1]) * _UNITS[found[2].lower()])
    elif whole is None:
        raise ArgumentError(f"{name}={memory!r} is a share, but of nothing known here; {wanted}")
    else:
        size = int(whole * float(found[1]) / 100)
    if size <= 0:
        raise ArgumentError(f"{name}={memory!r} is less than a byte; {wanted}")
    return size


def check_bytes(memory: int | str) -> None:
    """Raise an error for what is no size and no share, before it is known of what."""
    parse_bytes(memory, whole=1 << 50)


def format_bytes(count: float) -> str:
    """A size for people.

    >>> format_bytes(120_000_000), format_bytes(532)
    ('120.0 MB', '532 B')
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{int(count)} B"


class Budget:
    """A fixed number of bytes, handed out in named grants; the peak of their sum is kept."""

    def __init__(self, memory: int | str, whole: int | None = None, *, given: int | None = None) -> None:
        """``given`` is the user's ``memory`` where this is a part of it: that is what messages speak of."""
        self.total = parse_bytes(memory, whole)
        self.given = given or self.total
        self.parts: dict[str, int] = {}
        self.peak = 0

    @property
    def used(self) -> int:
        return sum(self.parts.values())

    @property
    def free(self) -> int:
        """Bytes that may still be granted."""
        return self.total - self.used

    def grant(self, part: str, size: int) -> bool:
        """Add ``size`` bytes to a part, or refuse."""
        if size > self.free:
            return False
        self.parts[part] = self.parts.get(part, 0) + size
        self.peak = max(self.peak, self.used)
        return True

    def require(self, part: str, size: int) -> None:
        """Add bytes that the join cannot do without."""
        if not self.grant(part, size):
            others = ", ".join(self.parts) or "nothing else"
            least = self.used + size
            raise self._too_small(f"{part} needs {size:,} beside {self.used:,} for {others}", least / self.total)

    def check_least(self, name: str, least: int) -> None:
        """Raise an error where a join that needs so much cannot work."""
        if least > self.total:
            raise self._too_small(f"{name} needs {least:,} with this master", least / self.total)

    def too_small_for_row(self, size: int, room: Callable[[float], int]) -> MemoryBudgetError:
        """The error for a row of the stream of this size; ``room`` is what one has in so many times the memory."""
        times = 1.0
        while room(times) < size:
            times *= 1.125
        return self._too_small(f"one row of the stream takes {size:,} bytes while it waits", times)

    def _too_small(self, why: str, times: float) -> MemoryBudgetError:
        said, least = f"memory={self.given:,} bytes", self.given * times
        if self.given != self.total:
            said, least = f"{said} ({self.total:,} for this part of the work)", 1.01 * least  # parts are rounded
        return MemoryBudgetError(f"{said} is too small: {why}; give at least {math.ceil(least):,} bytes")

    def resize(self, part: str, size: int) -> bool:
        """Make a part as large as this, by a grant or by giving back; or refuse, and leave it as it is."""
        held = self.parts.get(part, 0)
        if size > held:
            return self.grant(part, size - held)
        self.release(part, held - size)
        return True

    def release(self, part: str, size: int | None = None) -> None:
        """Give back some bytes of a part, or all of it."""
        held = self.parts.get(part, 0)
        size = held if size is None else size
        if size > held:
            raise MemoryBudgetError(f"{part} gives back {size:,} bytes but holds {held:,}")
        self.parts[part] = held - size
