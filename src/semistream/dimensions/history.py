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

from collections.abc import Iterable, Sequence
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


class _Observation(NamedTuple):
    """A change, with the version that began with it: its surrogate key and, when it was deleted since, its values."""

    values: Values | None
    surrogate: int | None = None
    past: Values | None = None


def merge(versions: Sequence[Version], changes: Iterable[Change]) -> list[Version]:
    """The versions after these changes, oldest first; those that are new have no surrogate key yet. Of changes at one
    time the last given wins. The versions must be what `merge` gave before, or one inferred member.
    """
    ordered = sorted(versions, key=position)
    known = _observations(ordered)
    for change in changes:
        old = known.get(change.time, _Observation(None))
        past = change.values if change.values is not None else old.past or old.values
        known[change.time] = _Observation(change.values, old.surrogate, past)
    open_left = any(one.valid_from is None for one in ordered)
    return _versions(known, open_left, next((one.surrogate for one in ordered if one.inferred), None))


def position(one: Version) -> tuple[bool, int, int]:
    """Sorts the versions of a member, oldest first."""
    return one.valid_from is not None, one.valid_from or 0, one.valid_to or 0


def _observations(ordered: list[Version]) -> dict[int, _Observation]:
    """What was observed of a member, by its times."""
    known: dict[int, _Observation] = {}
    for place, one in enumerate(ordered):
        begin, end = one.valid_from, one.valid_to
        owner = None if one.inferred or one.mark else one.surrogate
        if begin is not None:
            known[begin] = _Observation(None if begin == end else one.values, owner, one.values)
            owner = None  # it belongs to the first of them, which began the version
        for time in one.observed:
            if (begin is not None and time < begin) or (end is not None and time > end):
                known[time] = _Observation(None)
            else:
                known[time] = _Observation(one.values, owner, one.values)
                owner = None
        following = ordered[place + 1].valid_from if place + 1 < len(ordered) else None
        if end is not None and end not in (following, begin):
            known[end] = _Observation(None)
    return known


def _versions(known: dict[int, _Observation], open_left: bool, inferred: int | None) -> list[Version]:
    """The versions that observations make; ``inferred`` is the surrogate key of the version that is only inferred."""
    made: list[Version] = []
    leading: list[int] = []  # deletions before the first version
    times = sorted(known)
    first = known[times[0]] if times else _Observation(None)
    if open_left and (first.values is None or (inferred is not None and first.surrogate is not None)):
        # Nothing says what the member was in the beginning: it stays inferred.
        made.append(Version(None, None, None, inferred))
        open_left, inferred = False, None
    for time in times:
        seen = known[time]
        last = made[-1] if made else None
        running = last if last is not None and last.valid_to is None else None
        if seen.values is None and seen.surrogate is None:
            if last is None:
                leading.append(time)
            elif running is not None:
                made[-1] = running._replace(valid_to=time)
            else:
                made[-1] = last._replace(observed=(*last.observed, time))
            continue
        if running is not None:
            same = seen.values is not None and seen.values == running.values
            if same and None in (running.surrogate, seen.surrogate):
                # The same values still; but two versions that both have a surrogate key stay two.
                surrogate = running.surrogate if seen.surrogate is None else seen.surrogate
                made[-1] = running._replace(surrogate=surrogate, observed=(*running.observed, time))
                continue
            made[-1] = running._replace(valid_to=time)
        if seen.values is None:
            made.append(Version(time, time, seen.past, seen.surrogate))
        elif open_left:
            surrogate = inferred if seen.surrogate is None else seen.surrogate
            made.append(Version(None, None, seen.values, surrogate, (time,)))
            open_left = False
        else:
            made.append(Version(time, None, seen.values, seen.surrogate))
    if leading and not made:
        return [Version(leading[0], leading[0], None, None, tuple(leading[1:]))]
    if leading:
        made[0] = made[0]._replace(observed=(*leading, *made[0].observed))
    return [one._replace(observed=one.observed[:1] + one.observed[1:][1 - MOST_OBSERVED :]) for one in made]
