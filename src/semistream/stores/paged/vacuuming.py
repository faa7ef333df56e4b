"""Removing old versions, and what writers that died left behind.

The floor comes first: from then on nobody opens the old versions, and their numbers never come again. Then the segments
that only they used go, then their manifests, which say so: a vacuum that was cut short is finished by the next one.
Several at once do no harm, since each removes only what the newest version does not use.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from semistream import failpoints
from semistream.durable import explained, publish_new
from semistream.errors import ArgumentError, CorruptStoreError
from semistream.stores.paged.listing import Listing, floor_path, manifest_path
from semistream.stores.paged.manifest import Manifest

_ORPHAN_SECONDS = 86_400
_DRAFTS = ("segment-*", ".segment-*", ".version-*", ".floor-*")
_FLOORS_KEPT = 2  # a listing that runs meanwhile may miss the newest; the one before it is still there


def vacuum(path: Path, keep: int) -> list[str]:
    """See `MasterStore.vacuum`."""
    if keep < 1:
        raise ArgumentError(f"keep={keep}: at least one version must stay")
    listing = Listing.of(path)
    used = _segments_of_all(path, listing.versions[-keep:])
    if used is None:  # another vacuum went further meanwhile
        return vacuum(path, keep)
    old = [*listing.removed, *listing.versions[:-keep]]
    stale = {file for number in old for file in _segments(path, number) or ()} - used
    stale |= _orphans(path, used | stale)
    if listing.versions[:-keep]:
        _raise_floor(path, listing.versions[-keep:][0])
    failpoints.reach("vacuum.floor")
    manifests = [manifest_path(path, number).name for number in old]
    with explained("remove old versions from", path):
        for name in [*sorted(stale), *manifests]:
            (path / name).unlink(missing_ok=True)
            failpoints.reach("vacuum.removed")
        for number in Listing.of(path).floors[:-_FLOORS_KEPT]:
            floor_path(path, number).unlink(missing_ok=True)
    return [*manifests, *sorted(stale)]


def _raise_floor(path: Path, number: int) -> None:
    target = floor_path(path, number)
    with suppress(FileExistsError), explained("write", target):  # another vacuum, at the same time
        publish_new(target, f"The versions below {number} were removed. Their numbers are not used again.\n")


def _segments(path: Path, number: int) -> set[str] | None:
    """The files of a version; None when it is gone."""
    try:
        return set(Manifest.read(path, number).files)
    except FileNotFoundError:
        return None


def _segments_of_all(path: Path, numbers: list[int]) -> set[str] | None:
    """The files of versions that must be there; None when one was removed since they were listed."""
    used: set[str] = set()
    for number in numbers:
        files = _segments(path, number)
        if files is None:
            if number in Manifest.versions(path):
                raise CorruptStoreError(f"{manifest_path(path, number)} cannot be read: a broken link")
            return None
        used |= files
    return used


def _orphans(path: Path, known: set[str]) -> set[str]:
    """Files left by writers that died; a younger one may still be at work."""
    found = set()
    for file in (file for pattern in _DRAFTS for file in path.glob(pattern)):
        with suppress(FileNotFoundError):  # finished or given up meanwhile
            if file.name not in known and time.time() - file.stat().st_mtime > _ORPHAN_SECONDS:
                found.add(file.name)
    return found
