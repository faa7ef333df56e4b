"""What a paper states about a figure, and whether our data say the same.

A claim has the paper's words, their place in the paper, a check and, where it is known, the reason why it may come out
differently here. A stated advantage counts as reproduced when at least four fifths of it are seen, and as smaller when
the direction is the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from semistream_lab.plots import short

if TYPE_CHECKING:
    from semistream_lab.papers.figures import Drawn

State = Literal["reproduced", "smaller", "differs", "not measured"]
ENOUGH = 0.8  # of a stated ratio
_CLEARLY = 1.05  # a ratio that is a difference
_UNITS = {
    "rows_per_second": "in rate",
    "tuples_per_page": "in tuples per page",
    "tuples_per_read": "in tuples per read",
}


@dataclass(frozen=True)
class Seen:
    """What our data say to a claim."""

    text: str
    state: State


TIMED = ("rows_per_second", "processing_seconds", "waiting_seconds")
NOTHING = Seen("not measured yet", "not measured")


@dataclass(frozen=True)
class Claim:
    """One statement of a paper."""

    text: str
    where: str
    check: Callable[[Drawn], Seen]
    because: str = ""


@dataclass(frozen=True)
class Verdict:
    """Of a whole figure."""

    state: State
    words: str


def verdict(drawn: Drawn) -> Verdict:
    """Reproduced, or what differs and why; the worst claim decides."""
    found = [(claim, claim.check(drawn)) for claim in drawn.figure.claims]
    known = [(claim, seen) for claim, seen in found if seen.state != "not measured"]
    if not known:
        return Verdict("not measured", "shown, not judged" if drawn.found else "not run yet")
    if drawn.figure.stand_in:
        held = sum(seen.state == "reproduced" for _, seen in known)
        words = f"only a stand-in for the data was run; on that, {held} of {len(known)} statements hold"
        return Verdict("not measured", words)
    reasons = "; ".join(dict.fromkeys(claim.because for claim, seen in known if seen.state != "reproduced"))
    good = sum(seen.state == "reproduced" for _, seen in known)
    open_ones = len(found) - len(known)
    rest = f" ({open_ones} of {len(found)} statements not judged yet)" if open_ones else ""
    if good == len(known):
        if open_ones:
            return Verdict("not measured", f"{good} of {len(found)} statements hold, the others are not judged yet")
        return Verdict("reproduced", "reproduced")
    because = f", likely because {reasons}" if reasons else ""
    of = f" in {len(known) - good} of {len(known)} statements" if len(known) > 1 else ""
    if all(seen.state != "differs" for _, seen in known):
        return Verdict("smaller", f"same direction, smaller{of}{because}{rest}")
    return Verdict("differs", f"differs{of}{because}{rest}")


def judged(drawn: Drawn, measure: str, seen: Seen) -> Seen:
    """What was seen, unless it is a time that was taken on a busy machine."""
    if measure in TIMED and drawn.busy and seen is not NOTHING:
        return Seen(f"{seen.text} (on a busy machine: no judgement)", "not measured")
    return seen


def ratio(
    above: str, below: str, stated: float, at: int | None = None, measure: str = "tuples_per_page"
) -> Callable[[Drawn], Seen]:
    """One arm over another: at a point by its place on the axis, or the smallest over all points."""

    def check(drawn: Drawn) -> Seen:
        labels = drawn.labels if at is None else [drawn.labels[at]]
        values = _ratios(drawn, above, below, labels, measure)
        if not values:
            return NOTHING
        seen = min(values)
        text = f"{seen:.2f}×" if len(values) == 1 else f"{seen:.2f}× to {max(values):.2f}×"
        also = [name for name in ("rows_per_second", "tuples_per_page") if name != measure and measure in _UNITS]
        others = [_ratios(drawn, above, below, labels, name) for name in also]
        text = f"{text} {_UNITS.get(measure, '')}".rstrip()
        text += "".join(f", {min(o):.2f}× {_UNITS[n]}" for n, o in zip(also, others, strict=True) if o)
        enough = seen >= ENOUGH * stated
        state: State = "reproduced" if enough else "smaller" if seen > _CLEARLY else "differs"
        return judged(drawn, measure, Seen(text, state))

    return check


def best(
    arm: str, others: Iterable[str], measure: str = "tuples_per_page", *, lowest: bool = False
) -> Callable[[Drawn], Seen]:
    """An arm is ahead of all others at every point."""
    rivals = tuple(others)

    def check(drawn: Drawn) -> Seen:
        ahead, points, worst = 0, 0, ""
        for label in drawn.labels:
            own = drawn.value(arm, label, measure)
            against = {other: drawn.value(other, label, measure) for other in rivals}
            known = {other: value for other, value in against.items() if value is not None}
            if own is None or not known:
                continue
            points += 1
            rival = (min if lowest else max)(known, key=lambda name: known[name])
            good = own <= known[rival] if lowest else own >= known[rival]
            ahead += good
            if not good:
                worst = f"; at {label} {drawn.figure.name_of(rival)} is ahead"
        if not points:
            return NOTHING
        text = f"ahead at {ahead} of {points} points {_UNITS.get(measure, '')}".rstrip() + worst
        state: State = "reproduced" if ahead == points else "smaller" if ahead * 2 > points else "differs"
        return judged(drawn, measure, Seen(text, state))

    return check


def trend(
    arm: str, wanted: Literal["rises", "falls", "stays"], measure: str = "tuples_per_page"
) -> Callable[[Drawn], Seen]:
    """What happens to an arm from the first point to the last."""

    def check(drawn: Drawn) -> Seen:
        found = [value for label in drawn.labels if (value := drawn.value(arm, label, measure)) is not None]
        if len(found) < 2:
            return NOTHING
        change = found[-1] / found[0]
        seen = "rises" if change > 1.15 else "falls" if change < 0.87 else "stays"
        text = f"{drawn.figure.name_of(arm)}: from {short(found[0])} to {short(found[-1])} ({change:.2f}×)"
        return judged(drawn, measure, Seen(text, "reproduced" if seen == wanted else "differs"))

    return check


def grows(above: str, below: str, measure: str = "tuples_per_page") -> Callable[[Drawn], Seen]:
    """The advantage of an arm is larger at the last point than at the first."""

    def check(drawn: Drawn) -> Seen:
        values = _ratios(drawn, above, below, drawn.labels, measure)
        if len(values) < 2:
            return NOTHING
        text = f"from {values[0]:.2f}× to {values[-1]:.2f}× {_UNITS[measure]}"
        return judged(drawn, measure, Seen(text, "reproduced" if values[-1] > values[0] else "differs"))

    return check


def close(measure: str, model: str, within: float) -> Callable[[Drawn], Seen]:
    """A model's figures are near the measured ones, at every point and for every arm."""

    def check(drawn: Drawn) -> Seen:
        errors: dict[str, list[float]] = {}
        for (arm, _), group in drawn.found.items():
            said, seen = group.median(model), group.median(measure)
            if said and seen:
                errors.setdefault(arm, []).append(said / seen)
        if not errors:
            return Seen("the model gives no such figure", "not measured")
        text = ", ".join(f"{drawn.figure.name_of(arm)} {_errors(values)}" for arm, values in errors.items())
        all_of_them = [value for values in errors.values() for value in values]
        near = sum(abs(value - 1) <= within for value in all_of_them)
        whole = near == len(all_of_them)
        state: State = "reproduced" if whole else "smaller" if near * 2 >= len(all_of_them) else "differs"
        seen_text = f"the model says, against the measured: {text} (wanted: within {within:.0%})"
        return judged(drawn, measure, Seen(seen_text, state))

    return check


def peak(arm: str, measure: str = "rows_per_second") -> Callable[[Drawn], Seen]:
    """The largest value lies inside the axis, not at one of its ends."""

    def check(drawn: Drawn) -> Seen:
        found = [(value, label) for label in drawn.labels if (value := drawn.value(arm, label, measure)) is not None]
        if len(found) < 3:
            return NOTHING
        value, label = max(found)
        inside = label not in (found[0][1], found[-1][1])
        over = value / max(found[0][0], found[-1][0])
        text = f"largest at {label}, {over:.2f}× the better end"
        return judged(drawn, measure, Seen(text, "reproduced" if inside and over > 1.02 else "differs"))

    return check


def reaches(arm: str, label_at: int, measure: str, least: float, form: str = ".0%") -> Callable[[Drawn], Seen]:
    """A measure of an arm is at least so much at a point."""

    def check(drawn: Drawn) -> Seen:
        value = drawn.value(arm, drawn.labels[label_at], measure)
        if value is None:
            return NOTHING
        return Seen(format(value, form), "reproduced" if value >= least else "differs")

    return check


def _errors(values: list[float]) -> str:
    middle = _error(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({_error(min(values))} to {_error(max(values))})"


def _error(value: float) -> str:
    return f"{value:.2g}×" if value > 2 or value < 0.5 else f"{value - 1:+.0%}"


def _ratios(drawn: Drawn, above: str, below: str, labels: Iterable[str], measure: str) -> list[float]:
    pairs = [(drawn.value(above, label, measure), drawn.value(below, label, measure)) for label in labels]
    return [one / other for one, other in pairs if one and other]
