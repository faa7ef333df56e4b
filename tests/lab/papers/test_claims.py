"""Verdicts on made-up results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semistream_lab.papers import SUITES
from semistream_lab.papers.claims import Claim, best, close, grows, peak, ratio, reaches, trend, verdict
from semistream_lab.papers.figures import Drawn, Figure, Point
from semistream_lab.papers.tuned_xhybrid import PINNED, SWAPPABLE
from semistream_lab.results import Group

Values = dict[str, list[float | None]]


def drawn(values: Values, *claims: Claim, measure: str = "tuples_per_page", **more: Values) -> Drawn:
    """A figure with an arm a line, its points named 0, 1, …"""
    count = max(map(len, values.values()))
    points = tuple(Point(str(number), {"at": number}) for number in range(count))
    figure = Figure("1", "A figure", "x", points, tuple(values), "It says so.", claims)
    measures = {measure: values, **more}
    groups = [
        Group(
            "lab",
            arm,
            {"at": n},
            [{name: some[arm][n] for name, some in measures.items() if arm in some} | {"repetition": 0}],
        )
        for arm, line in values.items()
        for n, value in enumerate(line)
        if value is not None
    ]
    return Drawn(figure, groups)


@pytest.mark.parametrize(
    "seen, state", [(6.0, "reproduced"), (4.1, "reproduced"), (3.0, "smaller"), (1.0, "differs"), (0.5, "differs")]
)
def test_ratio(seen: float, state: str) -> None:
    found = ratio("a", "b", 5.0, -1)(drawn({"a": [9.0, seen * 2], "b": [1.0, 2.0]}))
    assert found.state == state
    assert f"{seen:.2f}×" in found.text


def test_ratio_over_all_points_takes_the_smallest() -> None:
    found = ratio("a", "b", 2.0)(drawn({"a": [4.0, 2.0, None], "b": [2.0, 2.0, 1.0]}))
    assert found.state == "differs"
    assert "1.00× to 2.00×" in found.text


def test_best() -> None:
    good = drawn({"a": [3.0, 4.0], "b": [1.0, 2.0], "c": [2.0, 4.0]})
    assert best("a", ["b", "c"])(good).state == "reproduced"
    assert best("b", ["a", "c"], lowest=True)(good).state == "reproduced"
    found = best("c", ["a", "b"])(good)
    assert found.text.startswith("ahead at 1 of 2 points")
    assert "at 0 a is ahead" in found.text
    assert best("b", ["a"])(good).state == "differs"


@pytest.mark.parametrize("last, seen", [(2.0, "rises"), (1.0, "stays"), (0.5, "falls")])
def test_trend(last: float, seen: str) -> None:
    figure = drawn({"a": [1.0, 7.0, last]})
    states = {wanted: trend("a", wanted)(figure).state for wanted in ("rises", "stays", "falls")}
    assert {wanted for wanted, state in states.items() if state == "reproduced"} == {seen}


def test_grows_and_peak() -> None:
    figure = drawn({"a": [2.0, 5.0, 3.0], "b": [1.0, 1.0, 1.0]})
    assert grows("a", "b")(figure).state == "reproduced"
    assert peak("a", "tuples_per_page")(figure).state == "reproduced"
    assert peak("b", "tuples_per_page")(figure).state == "differs"


def test_close_copes_with_a_model_that_says_nothing() -> None:
    values: Values = {"a": [100.0], "b": [100.0]}
    check = close("tuples_per_read", "predicted", 0.15)
    near: Values = {"a": [90.0], "b": [110.0]}
    assert check(drawn(values, measure="tuples_per_read", predicted=near)).state == "reproduced"
    half: Values = {"a": [90.0], "b": [200.0]}
    assert check(drawn(values, measure="tuples_per_read", predicted=half)).state == "smaller"
    several = check(drawn({"a": [100.0] * 3}, measure="tuples_per_read", predicted={"a": [95.0, 100.0, 300.0]}))
    assert several.state == "smaller"  # at some points, not at every one
    assert "a +0% (-5% to 3×)" in several.text
    nothing: Values = {"a": [None], "b": [None]}
    assert check(drawn(values, measure="tuples_per_read", predicted=nothing)).state == "not measured"


def test_a_verdict_names_the_reason() -> None:
    good = Claim("a is twice b", "page 1", ratio("a", "b", 2.0, 0))
    bad = Claim("b is twice a", "page 2", ratio("b", "a", 2.0, 0), "the moon is full")
    less = Claim("a is ten times b", "page 3", ratio("a", "b", 10.0, 0), "it rains")
    missing = Claim("c is twice b", "page 4", ratio("c", "b", 2.0, 0), "never said")
    values: Values = {"a": [4.0], "b": [2.0]}
    assert verdict(drawn(values, good)).words == "reproduced"
    found = verdict(drawn(values, good, bad))
    assert found.state == "differs"
    assert found.words == "differs in 1 of 2 statements, likely because the moon is full"
    assert verdict(drawn(values, less)).words == "same direction, smaller, likely because it rains"
    assert verdict(drawn(values, good, missing)).words == "1 of 2 statements hold, the others are not judged yet"
    assert verdict(drawn(values, bad, missing)).words.endswith("(1 of 2 statements not judged yet)")
    assert verdict(drawn(values, missing)).state == "not measured"


def test_a_stand_in_proves_nothing() -> None:
    good = Claim("a is twice b", "page 1", ratio("a", "b", 2.0, 0))
    one = drawn({"a": [4.0], "b": [2.0]}, good)
    one.figure = replace(one.figure, stand_in=True)
    assert verdict(one).state == "not measured"
    assert "1 of 1 statements hold" in verdict(one).words


def test_times_of_a_busy_machine_are_not_judged() -> None:
    timed = Claim("a is twice b in rate", "page 1", ratio("a", "b", 2.0, 0, "rows_per_second"))
    counted = Claim("a is twice b", "page 1", ratio("a", "b", 2.0, 0))
    rates: Values = {"a": [4.0], "b": [2.0]}
    one = drawn(rates, timed, counted, rows_per_second=rates)
    assert verdict(one).words == "reproduced"
    assert one.cold == 0
    for group in one.found.values():
        group.results[0]["load_before"] = 7.0
    assert timed.check(one).state == "not measured"
    assert "2.00×" in timed.check(one).text
    assert counted.check(one).state == "reproduced"


def test_reaches() -> None:
    figure = drawn({"a": [0.5, 0.81]}, measure="results_kept")
    assert reaches("a", -1, "results_kept", 0.8)(figure).state == "reproduced"
    assert reaches("a", 0, "results_kept", 0.8)(figure).state == "differs"


def test_surface_has_its_maximum_inside() -> None:
    suite = SUITES["tuned_xhybrid"]
    figure = suite.figures(suite.scale("quick"))[0]

    def surface(at: tuple[int, int]) -> Drawn:
        groups = []
        for number, point in enumerate(figure.points):
            place = divmod(number, len(SWAPPABLE))
            value = 10.0 - abs(place[0] - at[0]) - abs(place[1] - at[1])
            one = {"tuples_per_page": value, "rows_per_second": value, "pinned_pages": 5, "swappable_pages": 2}
            groups.append(Group("lab", "tuned_xhybrid", point.params, [{**one, "repetition": 0}]))
        return Drawn(figure, groups)

    inside = surface((2, 1))
    assert verdict(inside).state == "reproduced"
    assert f"{PINNED[2]:.0%} pinned, {SWAPPABLE[1]:.1%} swappable" in figure.claims[0].check(inside).text
    assert figure.claims[0].check(surface((0, 1))).state == "smaller"
    assert figure.claims[0].check(surface((0, 0))).state == "differs"
