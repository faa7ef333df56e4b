"""Publishing a version of a store exactly once: repeated when another writer was first, skipped when it is there.

A token (application, batch number) is kept in the store's properties, in the same version as the rows: whoever runs a
batch again finds that it was applied.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from semistream.errors import ArgumentError, ConcurrentWriteError
from semistream.stores import MasterStore

Token = tuple[str, int]
Result = TypeVar("Result")
ATTEMPTS = 50


def check_token(token: Token | None) -> None:
    """A token is a name and a batch number."""
    if token is None:
        return
    good = isinstance(token, tuple) and len(token) == 2 and isinstance(token[0], str) and token[0]
    if not good or isinstance(token[1], bool) or not isinstance(token[1], int) or token[1] < 0:
        raise ArgumentError(f"token={token!r} is not usable; give (application, batch number), such as ('sales', 7)")


def was_applied(store: MasterStore, token: Token | None) -> bool:
    """Does this version hold the batch already?"""
    return token is not None and int(store.manifest.properties.get(f"applied.{token[0]}", "-1")) >= token[1]


def token_property(token: Token | None) -> dict[str, str]:
    """The token as a property."""
    return {} if token is None else {f"applied.{token[0]}": str(token[1])}


def publish(
    store: MasterStore,
    change: Callable[[MasterStore], tuple[MasterStore, Result]],
    token: Token | None = None,
    attempts: int = ATTEMPTS,
) -> tuple[MasterStore, Result | None]:
    """Change the newest version; again from the start, a moment later, when another writer was first.

    The version, and what ``change`` says of it; None when the token's batch is there already.
    """
    for attempt in range(attempts):
        try:
            newest = store.latest()
            return (newest, None) if was_applied(newest, token) else change(newest)
        except ConcurrentWriteError:
            if attempt == attempts - 1:
                raise
            time.sleep(random.uniform(0, 0.002 * min(attempt + 1, 25)))  # so that two writers fall out of step
    raise ArgumentError(f"attempts={attempts} must be at least 1")
