"""Tuned X-HYBRIDJOIN's figures: the surface of both parts' sizes, the model beside it, and other joins.

R is sorted by popularity, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable

from semistream_lab.papers.axes import by_budget, by_size
from semistream_lab.papers.claims import NOTHING, Claim, Seen, best, close, grows, judged, peak
from semistream_lab.papers.figures import PAGES, RATE, Drawn, Figure, Panel, Point, Scale, Suite

PINNED = (0.05, 0.1, 0.2, 0.4, 0.6)
SWAPPABLE = (0.005, 0.02, 0.05, 0.1, 0.18)
TUNED = {"pinned": 0.2, "swappable": 0.02}
ARMS = ("tuned_xhybrid", "xhybrid", "hybrid", "rmesh", "mesh")
NAMES = {
    "tuned_xhybrid": "Tuned X-HYBRIDJOIN",
    "xhybrid": "X-HYBRIDJOIN",
    "hybrid": "HYBRIDJOIN",
    "rmesh": "R-MESHJOIN",
    "mesh": "MESHJOIN",
}
_FIXED = 50e6  # bytes
_MODEL = "model_tuples_per_page"
_OLDEST = (
    "the model takes partitions as chosen at random, while the join reads the one whose key has waited longest, which "
    "serves up to twice the tuples"
)
_SMALL_READS = "tuples per page grow as the swappable part shrinks; only the cost of a request speaks against that"
_FEW_LOOPS = "out of the page cache an iteration costs more than its pages, so the largest reads give the highest rate"
_ONE_SIZE = "the default sizes are not tuned for each budget"


def figures(scale: Scale) -> list[Figure]:
    """All of them."""
    return [_surface(scale), _by_swappable(scale), _by_pinned(scale), _by_size(scale), _by_memory(scale)]


def _cell(scale: Scale, pinned: float, swappable: float) -> dict[str, object]:
    settings = {"pinned": pinned, "swappable": swappable}
    return scale.cell(layout="sorted", memory=scale.memory(_FIXED), settings=settings)


def _surface(scale: Scale) -> Figure:
    points = [Point(f"{p:.0%} | {s:.1%}", _cell(scale, p, s)) for p in PINNED for s in SWAPPABLE]
    return Figure(
        "3",
        "Tuning: the sizes of both parts of the disk buffer",
        "swappable part, share of the memory",
        tuple(points),
        ("tuned_xhybrid",),
        "The rate rises with the pinned part, then falls slowly; with the swappable part it falls quickly after its "
        "largest value: a maximum inside, at different sizes of the two.",
        (
            Claim(
                "a maximum inside, for tuples per page",
                "section 5.1, figure 3",
                _inner("tuples_per_page"),
                _SMALL_READS,
            ),
            Claim("a maximum inside, for the rate", "section 5.1, figure 3", _inner("rows_per_second"), _FEW_LOOPS),
            Claim("at different sizes of the two parts", "section 4.1", _unequal),
        ),
        kind="surface",
        names=NAMES,
    )


def _by_swappable(scale: Scale) -> Figure:
    points = tuple(Point(f"{s:.1%}", _cell(scale, TUNED["pinned"], s)) for s in SWAPPABLE)
    return _beside_the_model("5a", "swappable part", points, "0.5 %")


def _by_pinned(scale: Scale) -> Figure:
    points = tuple(Point(f"{p:.0%}", _cell(scale, p, TUNED["swappable"])) for p in PINNED)
    return _beside_the_model("5b", "pinned (non-swappable) part", points, "0.6 %")


def _beside_the_model(name: str, part: str, points: tuple[Point, ...], apart: str) -> Figure:
    place = f"figure {name[0]}({name[1]})"
    return Figure(
        name,
        f"Model and measurement, by the {part}",
        f"{part}, share of the memory",
        points,
        ("tuned_xhybrid",),
        f"Model and measurement differ by {apart}.",
        (
            Claim(f"{apart} apart", f"section 5.3, {place}", close("tuples_per_page", _MODEL, 0.05), _OLDEST),
            Claim(
                "the model that takes the oldest key for that: within 15 %",
                "ours",
                close("tuples_per_page", "predicted_tuples_per_page", 0.15),
            ),
            Claim("the rate has a maximum inside", place, peak("tuned_xhybrid"), _FEW_LOOPS),
        ),
        (RATE, Panel("tuples_per_page", PAGES.title, model=_MODEL)),
        names=NAMES,
    )


def _by_size(scale: Scale) -> Figure:
    return Figure(
        "6a",
        *by_size(scale, fixed=_FIXED, millions=(0.5, 1, 2, 4), layout="sorted"),
        ARMS,
        "Tuned X-HYBRIDJOIN is far ahead of the others for every R, at 50 MB.",
        (Claim("ahead for every R", "section 6, figure 6(a)", best("tuned_xhybrid", ARMS[1:]), _ONE_SIZE),),
        names=NAMES,
    )


def _by_memory(scale: Scale) -> Figure:
    return Figure(
        "6b",
        *by_budget(scale, (50e6, 100e6, 150e6, 200e6), layout="sorted"),
        ARMS,
        "Tuned X-HYBRIDJOIN is far ahead at every memory, and more so with more of it.",
        (
            Claim("ahead at every memory", "section 6, figure 6(b)", best("tuned_xhybrid", ARMS[1:]), _ONE_SIZE),
            Claim("its lead over HYBRIDJOIN grows", "section 6", grows("tuned_xhybrid", "hybrid"), _ONE_SIZE),
        ),
        note="The paper's budgets reach from a fifth of R to four fifths of it.",
        names=NAMES,
    )


def best_of(drawn: Drawn, measure: str) -> tuple[float, int, int] | None:
    """The largest value of a surface, and its places along the pinned and the swappable axis."""
    found = [
        (value, number // len(SWAPPABLE), number % len(SWAPPABLE))
        for number, label in enumerate(drawn.labels)
        if (value := drawn.value("tuned_xhybrid", label, measure)) is not None
    ]
    return max(found) if len(found) == len(drawn.labels) else None


def _inner(measure: str) -> Callable[[Drawn], Seen]:
    def check(drawn: Drawn) -> Seen:
        found = best_of(drawn, measure)
        if found is None:
            return NOTHING
        _, pinned, swappable = found
        inside = [0 < pinned < len(PINNED) - 1, 0 < swappable < len(SWAPPABLE) - 1]
        text = f"largest at {PINNED[pinned]:.0%} pinned, {SWAPPABLE[swappable]:.1%} swappable"
        seen = Seen(text, "reproduced" if all(inside) else "smaller" if any(inside) else "differs")
        return judged(drawn, measure, seen)

    return check


def _unequal(drawn: Drawn) -> Seen:
    found = best_of(drawn, "rows_per_second")
    if found is None:
        return NOTHING
    group = drawn.at("tuned_xhybrid", drawn.labels[found[1] * len(SWAPPABLE) + found[2]])
    assert group is not None
    pinned, swappable = group.median("pinned_pages"), group.median("swappable_pages")
    text = f"{pinned:.0f} pages pinned, {swappable:.0f} swappable at the best rate"
    return judged(drawn, "rows_per_second", Seen(text, "reproduced" if pinned != swappable else "differs"))


SUITE = Suite(
    "tuned_xhybrid",
    "Tuned X-HYBRIDJOIN",
    "Naeem: Tuned X-HYBRIDJOIN for near-real-time data warehousing",
    2_000_000,
    figures,
    quick=200_000,
)
