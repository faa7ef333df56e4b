"""Manifests: what a version of a store consists of, and which versions there are.

A version is one JSON file, ``version-000007.json``, written under another name, synced and then linked into place; the
link fails when that version exists, so two writers cannot both publish it. A number never comes again: before `vacuum`
removes the versions below n, a marker ``floor-00000n`` appears, and whatever lies below the highest floor does not
count, even when a slow writer links it later (see `publishing`). This needs no more than "create if absent" and a
listing, which object stores have as well.
"""

import base64
import bisect
import json
import os
import re
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream import failpoints
from semistream.durable import checksum, explained
from semistream.errors import ArgumentError, CorruptStoreError, OtherVersionError, StoreNotFoundError

FORMAT = 1
_ANCESTORS = 64  # versions that others may publish and vacuum while a writer is between its link and its second look
_NUMBER = r"(\d{6}|[1-9]\d{6,})"  # as it is written: at least six digits
_VERSION = re.compile(rf"version-{_NUMBER}\.json")
_FLOOR = re.compile(rf"floor-{_NUMBER}")
_LOOKS = 3  # a listing is no snapshot: of files that replace each other meanwhile it can miss all


@dataclass(frozen=True)
class SegmentEntry:
    """One file of pages. ``role`` is "base" or "delta"; bases are disjoint and in key order, deltas override."""

    file: str
    role: str
    pages: int
    rows: int
    keys: int
    bytes: int
    largest_page: int
    largest_group: int
    footer_checksum: int


@dataclass(frozen=True)
class ColumnGroup:
    """Some columns of a store, and for every segment its twin: a file with the same rows in these columns alone."""

    columns: tuple[str, ...]  # beside the key, which every group holds
    twins: dict[str, SegmentEntry] = field(default_factory=dict)  # by the segment's file

    @property
    def bytes(self) -> int:
        return sum(twin.bytes for twin in self.twins.values())


@dataclass(frozen=True)
class StoreVersion:
    """Which content exactly: a path and a number can come to mean another store, these three cannot."""

    store_id: str
    number: int
    digest: int  # of the manifest

    def check(self, found: "Manifest", path: Path) -> None:
        """Refuse a manifest that describes other content."""
        if found.identity == self:
            return
        if found.store_id != self.store_id:
            what = "is another store: it was removed and built again, or this host has a copy of another one"
        elif found.version != self.number:
            what = f"is at version {found.version}"
        else:
            what = f"has a version {self.number} with other content: this host has a copy of its own"
        raise OtherVersionError(
            f"version {self.number} of {path} was expected (store {self.store_id or 'without an id'}), but what is "
            f"there {what}. Give every host the same copy of the store, or start again with what is there"
        )


@dataclass(frozen=True)
class Manifest:
    """One version of a store."""

    version: int
    parent: int | None
    change: str  # build, upsert, delete, apply (both), properties, merge, compact or project
    created: float
    schema: pa.Schema
    key: tuple[str, ...]
    hash_bits: int
    page_bytes: int
    rows: int
    segments: tuple[SegmentEntry, ...]
    null_keys: int = 0
    device: dict[str, float] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)  # what its users keep with the rows, published with them
    store_id: str = ""  # random, the same for all versions of a store; empty in those written before there were ids
    ancestors: str = ""  # the digests of the versions before, the parent's first, as eight hexadecimal digits each
    groups: dict[str, ColumnGroup] = field(default_factory=dict)

    @property
    def deltas(self) -> tuple[SegmentEntry, ...]:
        """The segments of the updates since, newest last."""
        return tuple(entry for entry in self.segments if entry.role == "delta")

    @property
    def files(self) -> list[str]:
        """All files of this version."""
        twins = (twin for group in self.groups.values() for twin in group.twins.values())
        return [entry.file for entry in (*self.segments, *twins)]

    @cached_property
    def identity(self) -> StoreVersion:
        """Which content this is, whatever its path."""
        return StoreVersion(self.store_id, self.version, checksum(self._body()))

    def _body(self) -> dict[str, Any]:
        schema = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        body = asdict(replace(self, schema=schema))
        if not self.groups:
            del body["groups"]  # a store without groups has the digest that it always had
        body["columns"] = {item.name: str(item.type) for item in self.schema}  # for people; not read back
        return body

    @staticmethod
    def first(**content: Any) -> "Manifest":
        """The first version of a store."""
        return Manifest(1, None, "build", time.time(), store_id=uuid.uuid4().hex, **content)

    def next(self, change: str, **changes: Any) -> "Manifest":
        digest = f"{self.identity.digest:08x}"
        return replace(
            self,
            version=self.version + 1,
            parent=self.version,
            change=change,
            created=time.time(),
            store_id=self.store_id or uuid.uuid4().hex,
            ancestors=(digest + self.ancestors)[: 8 * _ANCESTORS],
            **changes,
        )

    def descends_from(self, other: "Manifest") -> bool | None:
        """Is that version this one or one before it? None when it is too far back to know."""
        back = self.version - other.version
        if back <= 0:
            return self.identity == other.identity
        digest = self.ancestors[8 * (back - 1) : 8 * back]
        return digest == f"{other.identity.digest:08x}" if digest else None

    def is_in(self, root: Path) -> bool:
        """Is this version there? Not after a vacuum removed it, and another store may have its path and number."""
        with suppress(StoreNotFoundError):
            return Manifest.load(root, self.version).identity == self.identity
        return False

    def text(self) -> str:
        body = self._body()
        return json.dumps({"semistream": FORMAT, "crc32": checksum(body), "manifest": body}, indent=1)

    @staticmethod
    def versions(root: Path) -> list[int]:
        return Listing.of(root).versions

    @staticmethod
    def load(root: Path, version: int | None = None) -> "Manifest":
        while True:
            known = Manifest.versions(root)
            if not known:
                raise StoreNotFoundError(
                    f"there is no semistream store at {root}; make one with MasterStore.build(source, path, key=...) "
                    "or `semistream build`"
                )
            wanted = known[-1] if version is None else version
            if wanted not in known:
                there = ", ".join(map(str, known)) if len(known) <= 6 else f"{known[0]} to {known[-1]}"
                raise StoreNotFoundError(f"{root} has no version {wanted}; it has versions {there}")
            failpoints.reach("store.listed")
            try:
                return Manifest.read(root, wanted)
            except FileNotFoundError as error:
                if wanted in Manifest.versions(root):  # not removed by a vacuum since
                    raise CorruptStoreError(f"{manifest_path(root, wanted)} cannot be read: {error}") from error

    @staticmethod
    def read(root: Path, version: int) -> "Manifest":
        """Read the manifest of a version; a FileNotFoundError when it is gone."""
        path = manifest_path(root, version)
        try:
            with explained("read", path):
                document = json.loads(path.read_text(encoding="utf-8"))
            body = document["manifest"]
            if document["semistream"] != FORMAT:
                raise CorruptStoreError(
                    f"{path} has format {document['semistream']}; this semistream reads format {FORMAT}"
                )
            if document["crc32"] != checksum(body):
                raise CorruptStoreError(f"{path} is damaged: its checksum does not fit")
            if body["version"] != version:
                raise CorruptStoreError(f"{path} describes version {body['version']}, not {version}: it was renamed")
            body.pop("columns")
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(body.pop("schema"))))
            segments = tuple(SegmentEntry(**entry) for entry in body.pop("segments"))
            groups = {
                name: ColumnGroup(tuple(one["columns"]), {file: SegmentEntry(**e) for file, e in one["twins"].items()})
                for name, one in body.pop("groups", {}).items()
            }
            return Manifest(schema=schema, segments=segments, groups=groups, key=tuple(body.pop("key")), **body)
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise CorruptStoreError(f"{path} is damaged or not a semistream manifest: {error}") from error


def checked_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    texts = dict(properties or {})
    for name, value in texts.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ArgumentError(f"properties: {name!r}: {value!r} is not usable; names and values are texts")
    return texts


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
    def of(root: Path) -> "Listing":
        """Look, once; again when the versions seem to be gone that a floor speaks of."""
        for _ in range(_LOOKS):
            try:
                with explained("list", root):
                    names = os.listdir(root)
            except (FileNotFoundError, NotADirectoryError):
                names = []
            numbers, floors = _numbers(_VERSION, names), _numbers(_FLOOR, names)
            below = bisect.bisect_left(numbers, floors[-1]) if floors else 0
            listing = Listing(numbers[below:], numbers[:below], floors)
            if listing.versions or not floors:
                break
        return listing


def _numbers(pattern: re.Pattern[str], names: list[str]) -> list[int]:
    return sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))


def manifest_path(root: Path, version: int) -> Path:
    return root / f"version-{version:06d}.json"


def floor_path(root: Path, version: int) -> Path:
    """The marker that says: all versions below this one were removed."""
    return root / f"floor-{version:06d}"
