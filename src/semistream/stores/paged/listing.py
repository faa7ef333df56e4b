"""Which versions a store has, by one look at its directory.

A number never comes again. Before `vacuum` removes the versions below n, a marker ``floor-00000n`` appears, and
whatever lies below the highest floor does not count: manifests that are about to go, and one that a slow writer linked
although its number had been there before (see `publishing`). All this needs is "create if absent" and a listing, which
object stores have as well.
"""

from __future__ import annotations

import bisect
import os
import re
from dataclasses import dataclass
from pathlib import Path

from semistream.durable import explained

_NUMBER = r"(\d{6}|[1-9]\d{6,})"  # as it is written: at least six digits
_VERSION = re.compile(rf"version-{_NUMBER}\.json")
_FLOOR = re.compile(rf"floor-{_NUMBER}")
_LOOKS = 3  # a listing is no snapshot: of files that replace each other meanwhile it can miss all


@dataclass(frozen=True)
class Listing:
    """What one look at a store's directory shows, each list in ascending order."""

    versions: list[int]
    removed: list[int]  # below the floor; their files are about to go, or were linked by a writer that came too late
    floors: list[int]

    @property
    def floor(self) -> int:
        """All versions below this one were removed."""
        return self.floors[-1] if self.floors else 0

    @staticmethod
    def of(root: Path) -> Listing:
        """Look, once; again when the versions seem to be gone that a floor speaks of."""
        for _ in range(_LOOKS):
            try:
                with explained("list", root):
                    names = os.listdir(root)
            except (FileNotFoundError, NotADirectoryError):
                names = []
            numbers = _numbers(_VERSION, [name for name in names if name.startswith("version-")])
            floors = _numbers(_FLOOR, [name for name in names if name.startswith("floor-")])
            below = bisect.bisect_left(numbers, floors[-1]) if floors else 0
            listing = Listing(numbers[below:], numbers[:below], floors)
            if listing.versions or not floors:
                break
        return listing


def _numbers(pattern: re.Pattern[str], names: list[str]) -> list[int]:
    return sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))


def manifest_path(root: Path, version: int) -> Path:
    """The file of a version."""
    return root / f"version-{version:06d}.json"


def floor_path(root: Path, version: int) -> Path:
    """The marker that says: all versions below this one were removed."""
    return root / f"floor-{version:06d}"
