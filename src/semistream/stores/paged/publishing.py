"""Publishing a version: its number is linked once and for all, and nothing fails afterwards.

The link fails when the number is taken. It succeeds for a number whose manifest a vacuum removed; so the writer looks
again after its link. Its number is new when no floor lies above it, or when the newest version descends from it (others
may have gone on from it already). Otherwise it takes its file back; readers never saw it, because it lies below the
floor, and should the writer die before it can do so, the next vacuum removes the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from semistream import failpoints
from semistream.durable import explained, publish_new
from semistream.errors import ConcurrentWriteError, StoreIOError, StoreNotFoundError
from semistream.stores.paged.listing import Listing, manifest_path
from semistream.stores.paged.manifest import Manifest, StoreVersion


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
