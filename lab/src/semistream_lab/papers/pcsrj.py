"""PCSRJ's figures: two nodes against one, by size, memory and skew, and the cost model."""

from __future__ import annotations

from semistream_lab.papers.axes import by_budget, by_size, by_skew
from semistream_lab.papers.claims import Claim, best, ratio
from semistream_lab.papers.figures import Figure, Scale, Suite
from semistream_lab.papers.sscj import validation

ARMS = ("pcsrj", "pcsrj_one")
NAMES = {"pcsrj": "PCSRJ, two nodes", "pcsrj_one": "CACHEJOIN, one node"}
_FIXED = 50e6  # bytes
_BUDGETS = (50e6, 100e6, 150e6, 200e6)
_R = "rows_per_second"
_TWO_CORES = (
    "nodes are processes on two cores, and the process that splits the stream needs its share of them; a quick run's "
    "nodes have little to do for each read"
)
_TO_THE_END = (
    "nodes tell their counts when their streams end: the last tuples of each, for which nobody waits, and caches that "
    "were not full at the beginning are in them"
)


def figures(scale: Scale) -> list[Figure]:
    """All of them."""
    two, four = scale.size(2e6), scale.size(4e6)
    centre = validation("3f", scale, ARMS, NAMES, "section 4.3.4, figure 3f", _TO_THE_END)
    return [
        _by_size(scale),
        _by_memory("3b", scale, two, (1.65, 1.71)),
        _by_memory("3c", scale, four, (1.65, 1.71)),
        _by_skew("3d", scale, two),
        _by_skew("3e", scale, four),
        centre,
    ]


def _by_size(scale: Scale) -> Figure:
    return Figure(
        "3a",
        *by_size(scale, fixed=_FIXED, millions=(1, 2, 4, 8)),
        ARMS,
        "Two nodes are about 1.65 times one at 1 million rows, and 2 times at 8 million.",
        (
            Claim("1.65× at the smallest R", "section 4.3.1", ratio(*ARMS, 1.65, 0, _R), _TWO_CORES),
            Claim("2× at the largest R", "section 4.3.1", ratio(*ARMS, 2.0, -1, _R), _TWO_CORES),
        ),
        names=NAMES,
    )


def _by_memory(name: str, scale: Scale, rows: int, stated: tuple[float, float]) -> Figure:
    return Figure(
        name,
        *by_budget(scale, _BUDGETS, rows=rows),
        ARMS,
        "About 1.65 times with 50 MB and 1.71 times with 200 MB.",
        (
            Claim("1.65× with least memory", "section 4.3.2", ratio(*ARMS, stated[0], 0, _R), _TWO_CORES),
            Claim("1.71× with most memory", "section 4.3.2", ratio(*ARMS, stated[1], -1, _R), _TWO_CORES),
        ),
        names=NAMES,
    )


def _by_skew(name: str, scale: Scale, rows: int) -> Figure:
    return Figure(
        name,
        *by_skew(scale, rows=rows, memory=scale.memory(_FIXED)),
        ARMS,
        "Two nodes are ahead as soon as there is skew, about 1.65 times at skew 1.",
        (
            Claim("1.65× at skew 1", "section 4.3.3", ratio(*ARMS, 1.65, -1, _R), _TWO_CORES),
            Claim("ahead at every skew", "section 4.3.3", best("pcsrj", ["pcsrj_one"], _R), _TWO_CORES),
        ),
        names=NAMES,
    )


SUITE = Suite(
    "pcsrj",
    "PCSRJ",
    "Naeem and others: parallelised cache-based stream relation join",
    8_000_000,
    figures,
    quick=2_000_000,
)
