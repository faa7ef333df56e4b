"""MESHJOIN's figures: the cost model, memory, skew of R, real data, and load shedding."""

from __future__ import annotations

from semistream_lab.papers import shedding, workload
from semistream_lab.papers.claims import Claim, best, close, ratio, reaches, trend
from semistream_lab.papers.figures import PAGES, RATE, Figure, Panel, Point, Scale, Suite

_BUFFERS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6)
_MEMORY = ("0.5%", "1%", "2%", "5%", "10%")
_NAMES = {"mesh": "MESHJOIN", "inl": "INL"}
_OPTIMISED = 0.1  # of the budget for the disk buffer
_NO_SEEKS = (
    "a random read costs a microsecond out of the page cache, and a tenth of a millisecond past it, not a disk's seek "
    "of ten"
)


def figures(scale: Scale) -> list[Figure]:
    """All of them."""
    return [_model(scale), _memory(scale), _skew(scale), _weather(scale), _shedding(scale)]


def _model(scale: Scale) -> Figure:
    # The disk buffer is at most 1 MiB, so a larger R would not show what happens when it takes most of the memory.
    base = scale.cell(rows=min(scale.rows, 200_000), memory="5%", skew=0.5)
    rate = Panel("rows_per_second", RATE.title, log=False, model="predicted_rows_per_second")
    return Figure(
        "10a",
        "MESHJOIN: rate by the size of the disk buffer, predicted and measured",
        "share of the memory for the disk buffer (b)",
        tuple(Point(f"{share:.0%}", {**base, "buffer_share": share}) for share in _BUFFERS),
        ("mesh",),
        "At 5 % memory the rate is high for small b and drops as b takes the window's memory; the model follows it.",
        (
            Claim(
                "the model tracks the measured rate",
                "section 5.2, figure 10(a)",
                close("rows_per_second", "predicted_rows_per_second", 0.3),
                "the model knows the seconds of a tuple only roughly",
            ),
            Claim(
                "a large b shrinks the window: fewer tuples share a page",
                "section 5.2, figure 10(a)",
                trend("mesh", "falls"),
            ),
        ),
        (rate, PAGES),
        note="R has at most 200,000 rows here: the disk buffer is capped at 1 MiB.",
        names=_NAMES,
    )


def _memory(scale: Scale) -> Figure:
    points = [
        Point(share, scale.cell(memory=share, skew=0.5, buffer_share=_OPTIMISED)) for share in scale.some(_MEMORY)
    ]
    return Figure(
        "10b",
        "MESHJOIN and INL: rate by memory",
        "memory, share of R",
        tuple(points),
        ("mesh", "inl"),
        "MESHJOIN is about ten times INL at every memory (3,500 against 274 tuples per second at 0.5 %) and gains less "
        "and less from more memory.",
        (
            Claim("12.8× INL at 0.5 % of R", "section 5.2, varying M", ratio(*_PAIR, 12.8, 0, _R), _NO_SEEKS),
            Claim("10× INL at every memory", "section 5.2, varying M", ratio(*_PAIR, 10, None, _R), _NO_SEEKS),
            Claim("the rate rises with memory", "figure 10(b)", trend("mesh", "rises", _R)),
        ),
        note="The paper starts at 0.1 % of R; the index alone takes 0.2 % here, in memory.",
        names=_NAMES,
    )


def _skew(scale: Scale) -> Figure:
    rows = min(scale.rows, 3_500_000)
    skews = scale.some((0.1, 0.3, 0.5, 0.7, 1.0))
    points = [
        Point(
            f"{skew:g}",
            scale.cell(
                workload="many",
                rows=rows,
                domain=rows,
                master_skew=skew,
                skew=0.5,
                memory="5%",
                buffer_share=_OPTIMISED,
            ),
        )
        for skew in skews
    ]
    return Figure(
        "10c",
        "MESHJOIN and INL: rate by the skew of R",
        "skew of R (z_R); the stream has 0.5",
        tuple(points),
        ("mesh", "inl"),
        "Both fall as R's skew rises: MESHJOIN by uneven probing, INL by longer chains. MESHJOIN stays ahead.",
        (
            Claim("MESHJOIN's rate falls", "section 5.2, varying skew", trend("mesh", "falls", _R)),
            Claim("INL's rate falls", "section 5.2, varying skew", trend("inl", "falls", _R)),
            Claim("MESHJOIN is ahead at every skew", "figure 10(c)", best("mesh", ["inl"], _R), _NO_SEEKS),
        ),
        panels=(RATE, PAGES),
        names=_NAMES,
    )


def _weather(scale: Scale) -> Figure:
    params, note = workload.weather(scale)
    points = [
        Point(share, {**params, "memory": share, "buffer_share": _OPTIMISED}) for share in scale.some(_MEMORY[1:])
    ]
    return Figure(
        "10d",
        "MESHJOIN and INL: rate by memory, cloud reports",
        "memory, share of R",
        tuple(points),
        ("mesh", "inl"),
        "As on synthetic data, MESHJOIN is ahead of INL by a large margin, at small memory too.",
        (Claim("MESHJOIN is ahead at every memory", "figure 10(d)", best("mesh", ["inl"], _R), _NO_SEEKS),),
        note=note,
        stand_in=workload.stands_in(params),
        names=_NAMES,
    )


def _shedding(scale: Scale) -> Figure:
    rows = min(scale.rows, 3_500_000)
    return Figure(
        "11",
        "Load shedding: join results left, by speed of the stream",
        "speed of the stream over the join's (ρ)",
        tuple(
            Point(f"{speed:g}", {"rows": rows, "skew": 0.5, "speed": speed}) for speed in (1.1, 1.25, 1.5, 1.75, 2.0)
        ),
        tuple(shedding.ARMS),
        "TOPW keeps more than 80 % of the results at z_R = 0.5 and ρ = 2, and more where R is more skewed.",
        (
            Claim("> 80 % at z_R = 0.5 and ρ = 2", "section 5.2, figure 11", reaches("topw_05", -1, _KEPT, 0.8)),
            Claim("more is kept as R's skew rises", "section 5.2, figure 11", best("topw_1", ["topw_05"], _KEPT)),
            Claim("little skew, bigger losses", "section 5.2, figure 11", best("topw_05", ["topw_01"], _KEPT)),
            Claim("TOPW keeps more than any w tuples would", "section 4", best("topw_05", ["keep_w"], _KEPT)),
        ),
        (Panel(_KEPT, "share of the join's results", log=False),),
        note="Drawn from TOPW's definition with the frequencies that Zipf's law expects, not a sample; no join is run.",
        names={
            "topw_01": "TOPW, z_R = 0.1",
            "topw_05": "TOPW, z_R = 0.5",
            "topw_1": "TOPW, z_R = 1",
            "keep_w": "any w, z_R = 0.5",
        },
    )


_PAIR, _R, _KEPT = ("mesh", "inl"), "rows_per_second", "results_kept"

SUITE = Suite(
    "meshjoin",
    "MESHJOIN",
    "Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell: Meshing streaming updates with persistent data in an "
    "active data warehouse (2008)",
    3_500_000,
    figures,
)
