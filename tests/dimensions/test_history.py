"""Histories of a member: whatever the order of the changes, they say what a brute-force model says."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.dimensions.history import MOST_OBSERVED, Change, Version, merge

TIMES = st.integers(0, 12)
STATES = st.one_of(st.none(), st.tuples(st.sampled_from("ABC")))
BY_TIME = st.dictionaries(TIMES, STATES, min_size=1, max_size=8)
INFERRED = Version(None, None, None, 1)


class Numbers:
    """Surrogate keys as a dimension gives them, and the check that none is lost or reused."""

    def __init__(self, first: int = 1) -> None:
        self.next = count(first)
        self.given: set[int] = set()

    def __call__(self, versions: list[Version]) -> list[Version]:
        made = [
            one if one.surrogate is not None or one.mark else one._replace(surrogate=next(self.next))
            for one in versions
        ]
        have = [one.surrogate for one in made if one.surrogate is not None]
        assert len(have) == len(set(have))
        assert self.given <= set(have), "a surrogate key was lost"
        self.given |= set(have)
        return made


def holds(one: Version, time: float) -> bool:
    begun = one.valid_from is None or one.valid_from <= time
    return begun and (one.valid_to is None or time < one.valid_to)


def value_at(versions: list[Version], time: float) -> tuple[str, ...] | None:
    found = [one for one in versions if holds(one, time)]
    assert len(found) <= 1, f"overlap at {time}: {found}"
    return found[0].values if found else None


def model_at(changes: dict[int, tuple[str, ...] | None], time: float, *, open_left: bool) -> tuple[str, ...] | None:
    """Obviously right: the last change up to then; before the first, what an inferred member became."""
    past = [moment for moment in changes if moment <= time]
    if past:
        return changes[max(past)]
    return changes[min(changes)] if open_left else None


def check_shape(versions: list[Version]) -> None:
    for one, following in pairwise(versions):
        assert one.valid_to is not None, "only the last version is open"
        assert following.valid_from is not None, "only the first version has no beginning"
        assert one.valid_to <= following.valid_from
    for one in versions:
        assert one.valid_from is None or one.valid_to is None or one.valid_from <= one.valid_to


@pytest.mark.parametrize("inferred", [False, True])
@settings(max_examples=150, deadline=None)
@given(changes=BY_TIME, data=st.data())
def test_any_order_gives_the_same_history(
    inferred: bool, changes: dict[int, tuple[str, ...] | None], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(sorted(changes)))
    number = Numbers(2)
    versions = [INFERRED] if inferred else []
    waiting = [Change(time, changes[time]) for time in order]
    while waiting:  # some at a time, as batches bring them
        size = data.draw(st.integers(1, len(waiting)))
        versions = number(merge(versions, waiting[:size]))
        waiting = waiting[size:]
        check_shape(versions)
    at_once = merge([INFERRED] if inferred else [], [Change(time, changes[time]) for time in sorted(changes)])
    for half in range(-2, 28):
        expected = model_at(changes, half / 2, open_left=inferred)
        assert value_at(versions, half / 2) == value_at(at_once, half / 2) == expected
    same = [(v.valid_from, v.valid_to, v.values) for v in versions]
    assert same == [(v.valid_from, v.valid_to, v.values) for v in at_once], "the same intervals, too"


@settings(max_examples=150, deadline=None)
@given(changes=st.lists(st.tuples(TIMES, STATES), min_size=1, max_size=12), data=st.data())
def test_corrections_lose_no_surrogate_key(
    changes: list[tuple[int, tuple[str, ...] | None]], data: st.DataObject
) -> None:
    """Several changes at one time: the last given wins, and every version that had a key keeps it."""
    number = Numbers()
    versions: list[Version] = []
    known: dict[int, tuple[str, ...] | None] = {}
    for time, values in changes:
        versions = number(merge(versions, [Change(time, values)]))
        known[time] = values
        check_shape(versions)
        for half in range(-2, 28):
            assert value_at(versions, half / 2) == model_at(known, half / 2, open_left=False)


@settings(max_examples=100, deadline=None)
@given(changes=BY_TIME, inferred=st.booleans())
def test_the_same_changes_again_change_nothing(changes: dict[int, tuple[str, ...] | None], inferred: bool) -> None:
    number = Numbers(2)
    given_changes = [Change(*item) for item in changes.items()]
    once = number(merge([INFERRED] if inferred else [], given_changes))
    assert merge(once, given_changes) == once
    assert merge(once, []) == once


def test_the_same_values_make_no_version() -> None:
    versions = merge([], [Change(1, ("A",)), Change(5, ("A",))])
    assert versions == [Version(1, None, ("A",), None, (5,))]
    split = merge([versions[0]._replace(surrogate=7)], [Change(3, ("B",))])
    assert [(v.valid_from, v.valid_to, v.values, v.surrogate) for v in split] == [
        (1, 3, ("A",), 7),
        (3, 5, ("B",), None),
        (5, None, ("A",), None),
    ]


def test_an_inferred_member_is_completed_in_place() -> None:
    completed = merge([INFERRED], [Change(10, ("A",))])
    assert completed == [Version(None, None, ("A",), 1, (10,))]
    late = merge(completed, [Change(5, ("B",))])
    assert late == [Version(None, 10, ("B",), None, (5,)), Version(10, None, ("A",), 1)]


def test_a_deletion_before_its_member() -> None:
    mark = merge([], [Change(5, None)])
    assert [one.mark for one in mark] == [True]
    assert merge(mark, [Change(1, ("A",))]) == [Version(1, 5, ("A",))]
    gone = merge([INFERRED], [Change(5, None)])
    assert gone == [Version(None, 5, None, 1)]
    assert merge(gone, [Change(7, ("C",))]) == [Version(None, 5, None, 1), Version(7, None, ("C",))]


def test_a_version_deleted_at_its_beginning_keeps_its_row() -> None:
    versions = merge([Version(5, None, ("A",), 3)], [Change(5, None)])
    assert versions == [Version(5, 5, ("A",), 3)]
    assert merge(versions, [Change(5, ("B",))]) == [Version(5, None, ("B",), 3)]


def test_what_is_remembered_is_bounded() -> None:
    versions = merge([], [Change(time, ("A",)) for time in range(1_000)])
    assert len(versions[0].observed) == MOST_OBSERVED
    assert versions[0].observed[-1] == 999
