"""Our own join against all others: by memory, size and skew, all of them at one point, and out of the page cache."""

from __future__ import annotations

from semistream_lab.papers.axes import Axis, by_memory, by_size, by_skew
from semistream_lab.papers.claims import Claim, best, ratio
from semistream_lab.papers.figures import Figure, Point, Scale, Suite

MAIN = ("sweep", "moij", "sscj", "hybrid", "derakhshan", "mesh", "inl")
ALL = (
    "sweep",
    "sweep_patient",
    "moij",
    "sscj",
    "pcsrj",
    "optimised_xhybrid",
    "tuned_xhybrid",
    "xhybrid",
    "hybrid",
    "ssij",
    "partition",
    "derakhshan",
    "ssbj",
    "rmesh",
    "amesh",
    "mesh",
    "inl",
)
_R = "rows_per_second"
_CACHE = "sweep gives most of its memory to the cache and little to waiting, so it reads more pages and does less work"
_OTHERS = (
    "pcsrj is two processes here, on both cores, each with reads of its own; and where R is large, those with a queue "
    "let tuples wait for a minute, while sweep reads after a second"
)
_SCANS = "on a uniform stream no cache helps, and whoever lets tuples wait longest reads least"


def figures(scale: Scale) -> list[Figure]:
    """All of them."""
    past = (Point("10%", scale.cell(direct=True)),)
    cached = (Point("10%", scale.cell(direct=False)),)
    return [
        _figure("1", by_memory(scale)),
        _figure("2", by_size(scale)),
        _figure("3", by_skew(scale)),
        _everybody("4", "Every join, past the page cache (O_DIRECT)", past),
        _everybody("5", "Every join, out of the page cache", cached),
    ]


def _figure(name: str, axis: Axis) -> Figure:
    return Figure(
        name,
        *axis,
        MAIN,
        "Wanted: sweep has the highest rate at every point.",
        (
            Claim("highest rate at every point", "ours", best("sweep", MAIN[1:], _R), _SCANS),
            Claim("as many tuples per page as MOIJ", "ours", ratio("sweep", "moij", 1.0, -1), _CACHE),
        ),
    )


def _everybody(name: str, title: str, points: tuple[Point, ...]) -> Figure:
    return Figure(
        name,
        title,
        "join",
        points,
        ALL,
        "Wanted: sweep has the highest rate.",
        (Claim("highest rate", "ours", best("sweep", ALL[2:], _R), _OTHERS),),
        kind="bars",
        note="sweep lets a tuple wait for a second at most, or for a minute where the bar says so; the others for as "
        "long as their queue is, which grows with R.",
        names={"sweep_patient": "sweep, 60 s"},
    )


SUITE = Suite("sweep", "sweep, ours against all", "semistream's own join", 100_000_000, figures)
