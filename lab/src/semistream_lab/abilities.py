"""What this version of semistream can do; a benchmark uses what is there and does without the rest."""

from __future__ import annotations

import inspect
from functools import cache


@cache
def join_takes(option: str) -> bool:
    """Has `join` such an option?"""
    from semistream.lookup.run import make_join

    return option in inspect.signature(make_join).parameters


@cache
def build_takes(option: str) -> bool:
    """Has `MasterStore.build` such an option?"""
    from semistream.stores import MasterStore

    return option in inspect.signature(MasterStore.build).parameters
