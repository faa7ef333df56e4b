"""The versions of one member of a dimension (type 2), and how changes, late ones included, are merged into them.

A change is an observation: from its time on the member has these values, or is gone, until the next observation. The
history is what all observations together say, so it does not depend on the order in which they came. For that an
observation that starts no version (the values were the same already, the member was gone already) is remembered too:
its time is among the version's ``observed``. Without that a late change could not know where it ends.

A version that has a surrogate key is never removed, since facts may refer to it: at most its interval becomes empty.
Its values change only when an observation of the same time corrects them. A member that was inferred is open to the
left: its first values count from the beginning of time.

>>> one = merge([], [Change(10, ("red",)), Change(30, ("blue",))])
>>> [(v.valid_from, v.valid_to, v.values) for v in merge(one, [Change(20, ("green",))])]
[(10, 20, ('red',)), (20, 30, ('green',)), (30, None, ('blue',))]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# Observations that are remembered of a version, its first one and the newest; only a change that comes later than
# so many unchanged observations could end too late.
MOST_OBSERVED = 256
Values = tuple[Any, ...]


class Change(NamedTuple):
    """From ``time`` on the member has these values; None: it is gone."""

    time: int
    values: Values | None


class Version(NamedTuple):
    """Values that hold in [valid_from, valid_to); None is open. A version without values is inferred.

    Without a surrogate key it is a new version, or, with an empty interval, the mark of a deletion whose member has
    not been seen yet.
    """

    valid_from: int | None
    valid_to: int | None
    values: Values | None
    surrogate: int | None = None
    observed: tuple[int, ...] = ()

    @property
    def inferred(self) -> bool:
        """Known by its key only."""
        return self.values is None and not self.mark

    @property
    def mark(self) -> bool:
        """Only the memory of a deletion."""
        return self.surrogate is None and self.values is None and self.valid_from is not None

    @property
    def empty(self) -> bool:
        """Never valid: it was deleted at the time at which it began."""
        return self.valid_from is not None and self.valid_from == self.valid_to

    def holds(self, time: int) -> bool:
        """Is it valid at that time?"""
        begun = self.valid_from is None or self.valid_from <= time
        return begun and (self.valid_to is None or time < self.valid_to)


class _Observation(NamedTuple):
    """A change, with the version that began with it: its surrogate key and, when it was deleted since, its values."""

    values: Values | None
    surrogate: int | None = None
    past: Values | None = None


@dataclass
class _Timeline:
    """All that is known of a member."""

    observations: dict[int, _Observation] = field(default_factory=dict)
    open_left: bool = False
    inferred: int | None = None  # surrogate key of the version that is only inferred


def merge(versions: Sequence[Version], changes: Iterable[Change]) -> list[Version]:
    """The versions after these changes, oldest first; those that are new have no surrogate key yet.

    Of changes at one time the last given wins. The versions must be what `merge` gave before, or one inferred member.
    """
    line = _timeline(versions)
    for change in changes:
        old = line.observations.get(change.time, _Observation(None))
        past = change.values if change.values is not None else old.past or old.values
        line.observations[change.time] = _Observation(change.values, old.surrogate, past)
    return _versions(line)


def position(one: Version) -> tuple[bool, int, int]:
    """Sorts the versions of a member, oldest first."""
    return one.valid_from is not None, one.valid_from or 0, one.valid_to or 0


def _timeline(versions: Sequence[Version]) -> _Timeline:
    line = _Timeline()
    ordered = sorted(versions, key=position)
    for place, one in enumerate(ordered):
        begin, end = one.valid_from, one.valid_to
        owner = None if one.inferred or one.mark else one.surrogate
        if one.inferred:
            line.inferred = one.surrogate
        line.open_left |= begin is None
        if begin is not None:
            values = None if one.empty else one.values
            line.observations[begin] = _Observation(values, owner, one.values)
        for time in one.observed:
            before, after = begin is not None and time < begin, end is not None and time > end
            if before or after:
                line.observations[time] = _Observation(None)
                continue
            first = begin is None and owner is not None
            line.observations[time] = _Observation(one.values, owner if first else None, one.values)
            owner = None if first else owner
        following = ordered[place + 1].valid_from if place + 1 < len(ordered) else None
        if end is not None and end not in (following, begin):
            line.observations[end] = _Observation(None)
    return line


def _versions(line: _Timeline) -> list[Version]:
    made: list[Version] = []
    leading: list[int] = []  # deletions before the first version
    times = sorted(line.observations)
    open_left = line.open_left
    inferred = line.inferred
    if open_left and (not times or line.observations[times[0]].values is None or _own_twice(line, times[0])):
        # Nothing says what the member was in the beginning: it stays inferred.
        made.append(Version(None, None, None, inferred))
        open_left, inferred = False, None
    for time in times:
        seen = line.observations[time]
        last = made[-1] if made else None
        if seen.values is None:
            if seen.surrogate is not None:
                made[-1:] = _closed(last, time)
                made.append(Version(time, time, seen.past, seen.surrogate))
            elif last is None:
                leading.append(time)
            elif last.valid_to is None:
                made[-1] = last._replace(valid_to=time)
            else:
                made[-1] = last._replace(observed=(*last.observed, time))
        elif last is not None and last.valid_to is None and _continues(last, seen):
            surrogate = last.surrogate if seen.surrogate is None else seen.surrogate
            made[-1] = last._replace(surrogate=surrogate, observed=(*last.observed, time))
        else:
            made[-1:] = _closed(last, time)
            if open_left:
                surrogate = inferred if seen.surrogate is None else seen.surrogate
                made.append(Version(None, None, seen.values, surrogate, (time,)))
                open_left = False
            else:
                made.append(Version(time, None, seen.values, seen.surrogate))
    if leading and not made:
        return [Version(leading[0], leading[0], None, None, tuple(leading[1:]))]
    if leading:
        made[0] = made[0]._replace(observed=(*leading, *made[0].observed))
    return [
        one if len(one.observed) <= MOST_OBSERVED else one._replace(observed=_remembered(one.observed)) for one in made
    ]


def _own_twice(line: _Timeline, first: int) -> bool:
    """Has the first observation a version of its own beside the inferred one?"""
    return line.inferred is not None and line.observations[first].surrogate is not None


def _closed(last: Version | None, time: int) -> list[Version]:
    if last is None:
        return []
    return [last._replace(valid_to=time) if last.valid_to is None else last]


def _continues(last: Version, seen: _Observation) -> bool:
    """The same values still; but two versions that both have a surrogate key stay two."""
    both = last.surrogate is not None and seen.surrogate is not None
    return last.values == seen.values and not both


def _remembered(observed: tuple[int, ...]) -> tuple[int, ...]:
    return (observed[0], *observed[len(observed) - MOST_OBSERVED + 1 :])
