"""Few cases that hold every pair of values: most faults need two values to meet, and all combinations are too many."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

Case = tuple[str, ...]


def all_pairs(choices: Mapping[str, Sequence[str]], seed: int = 0, tries: int = 20) -> list[Case]:
    """Cases, one value a dimension, such that any two values of different dimensions meet in at least one of them."""
    values = list(choices.values())
    chooser = random.Random(seed)
    open_pairs = {
        (i, a, j, b)
        for i, j in itertools.combinations(range(len(values)), 2)
        for a, b in itertools.product(values[i], values[j])
    }
    cases: list[Case] = []
    while open_pairs:
        i, a, j, b = min(open_pairs)
        best: tuple[int, Case] = (-1, ())
        for _ in range(tries):
            drawn = [chooser.choice(one) for one in values]
            drawn[i], drawn[j] = a, b
            best = max(best, (len(_pairs(drawn) & open_pairs), tuple(drawn)))
        cases.append(best[1])
        open_pairs -= _pairs(best[1])
    return cases


def _pairs(case: Sequence[str]) -> set[tuple[int, str, int, str]]:
    return {(i, case[i], j, case[j]) for i, j in itertools.combinations(range(len(case)), 2)}
