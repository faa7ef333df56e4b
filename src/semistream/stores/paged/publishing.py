"""Publishing versions, and removing old ones.

A version's number is linked once and for all, and nothing fails afterwards. The link fails when the number is taken,
but not when a vacuum removed its manifest, so the writer looks again after its link: the number is new when no floor
lies above it, or when the newest version descends from it (others may have gone on from it already). Otherwise it takes
its file back; readers never saw it, because it lies below the floor, and should the writer die before it can do so, the
next vacuum removes the file.

A vacuum raises the floor first: from then on nobody opens the old versions, and their numbers never come again. Then
the segments that only they used go, then their manifests, which say so: a vacuum that was cut short is finished by the
next one. Several at once do no harm, since each removes only what the newest version does not use. What writers that
died left behind goes too.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from semistream import failpoints
from semistream.durable import explained, publish_new
from semistream.errors import ArgumentError, ConcurrentWriteError, StoreIOError, StoreNotFoundError
from semistream.stores.paged.manifest import Listing, Manifest, StoreVersion, floor_path, manifest_path

_ORPHAN_SECONDS = 86_400
DRAFTS = ("segment-", ".segment-", ".version-", ".floor-")  # how names begin that no version may know yet
_FLOORS_KEPT = 2  # a listing that runs meanwhile may miss the newest; the one before it is still there


def check_newest(manifest: Manifest, root: Path, change: str) -> None:
    """Refuse to change a version that is not, or no longer, the newest of the store at this path."""
    try:
        same = Manifest.read(root, manifest.version).identity == manifest.identity
    except FileNotFoundError:
        same = False
    if same and not manifest_path(root, manifest.version + 1).exists():
        return  # no listing: there may be many thousand versions
    newest = Manifest.load(root)
    if newest.identity == manifest.identity:
        return
    if newest.version == manifest.version or newest.store_id != manifest.store_id:
        manifest.identity.check(newest, root)
    raise ConcurrentWriteError(
        f"{change} on version {manifest.version} of {root}, but version {newest.version} is there; "
        f"use store.latest().{change}(...)"
    )


def publish(manifest: Manifest, root: Path, new_files: Iterable[str] = ()) -> None:
    """Make a version visible, all at once. When it cannot be, the new files are removed."""
    text = manifest.text()
    target = manifest_path(root, manifest.version)
    try:
        _check_parent(manifest, root)
        failpoints.reach("store.publish")
        with explained(f"publish version {manifest.version} as", target):
            publish_new(target, text)
    except BaseException as error:
        if _holds(target, text):
            if isinstance(error, StoreIOError):
                raise StoreIOError(
                    f"version {manifest.version} is there, but may not survive a crash: {error}"
                ) from error
            raise
        _remove(root, new_files)
        if isinstance(error, FileExistsError):
            raise ConcurrentWriteError(
                f"{target} exists: another writer published version {manifest.version} first; "
                "open the store again and repeat"
            ) from None
        if isinstance(error, FileNotFoundError):
            raise StoreNotFoundError(f"{root} was removed while version {manifest.version} was written") from error
        raise
    failpoints.reach("store.linked")
    _confirm(manifest, root, new_files)


def _check_parent(manifest: Manifest, root: Path) -> None:
    """A store that was removed and built again meanwhile may have the parent's number, but not its content."""
    if manifest.parent is None:
        return
    try:
        found = Manifest.read(root, manifest.parent)
    except FileNotFoundError:
        return  # vacuumed: so there are newer ones, and the link fails or is taken back
    digest = int(manifest.ancestors[:8], 16)
    if found.identity.digest != digest:
        StoreVersion(manifest.store_id, manifest.parent, digest).check(found, root)


def _confirm(manifest: Manifest, root: Path, new_files: Iterable[str]) -> None:
    listing = Listing.of(root)
    if listing.versions[-1:] == [manifest.version]:
        return
    try:
        newest = Manifest.load(root)
    except StoreNotFoundError:
        raise StoreNotFoundError(f"{root} was removed after version {manifest.version} was written") from None
    descends = newest.descends_from(manifest)
    if descends or (descends is None and listing.floor <= manifest.version):
        return
    if descends is None:
        raise ConcurrentWriteError(
            f"version {manifest.version} of {root} was written, but {newest.version - manifest.version} versions have "
            "appeared since, and it cannot be told whether they hold its rows; look for them, and repeat if need be"
        )
    manifest_path(root, manifest.version).unlink(missing_ok=True)
    _remove(root, new_files)
    raise ConcurrentWriteError(
        f"version {manifest.version} of {root} was published by another writer before, and removed by vacuum; "
        f"version {newest.version} is there: open the store again and repeat"
    )


def _holds(target: Path, text: str) -> bool:
    try:
        return target.read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False


@contextmanager
def removed_on_error(root: Path, names: Iterable[str]) -> Iterator[None]:
    """Remove files that no version names yet when the body fails."""
    try:
        yield
    except BaseException:
        _remove(root, names)
        raise


def _remove(root: Path, names: Iterable[str]) -> None:
    for name in names:
        (root / name).unlink(missing_ok=True)


def vacuum(path: Path, keep: int) -> list[str]:
    """Remove all but the newest versions, and what only they used; gives the names of the files."""
    if keep < 1:
        raise ArgumentError(f"keep={keep}: at least one version must stay")
    listing = Listing.of(path)
    try:
        used = {file for number in listing.versions[-keep:] for file in Manifest.load(path, number).files}
    except StoreNotFoundError:
        return vacuum(path, keep)  # another vacuum went further meanwhile
    old = [*listing.removed, *listing.versions[:-keep]]
    stale: set[str] = set()
    for number in old:
        with suppress(FileNotFoundError):  # another vacuum was first
            stale.update(Manifest.read(path, number).files)
    stale -= used
    stale |= _orphans(path, used | stale)
    if listing.versions[:-keep]:
        floor = listing.versions[-keep]
        target = floor_path(path, floor)
        with suppress(FileExistsError), explained("write", target):  # another vacuum, at the same time
            publish_new(target, f"The versions below {floor} were removed. Their numbers are not used again.\n")
    failpoints.reach("vacuum.floor")
    manifests = [manifest_path(path, number).name for number in old]
    with explained("remove old versions from", path):
        for name in [*sorted(stale), *manifests]:
            (path / name).unlink(missing_ok=True)
            failpoints.reach("vacuum.removed")
        for number in Listing.of(path).floors[:-_FLOORS_KEPT]:
            floor_path(path, number).unlink(missing_ok=True)
    return [*manifests, *sorted(stale)]


def _orphans(path: Path, known: set[str]) -> set[str]:
    """Files left by writers that died; a younger one may still be at work."""
    found = set()
    for file in path.glob("*"):
        with suppress(FileNotFoundError):  # finished or given up meanwhile
            unknown = file.name.startswith(DRAFTS) and file.name not in known
            if unknown and time.time() - file.stat().st_mtime > _ORPHAN_SECONDS:
                found.add(file.name)
    return found
