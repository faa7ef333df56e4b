"""Masters as one batch reads them: each at a version, which a replay reads again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from semistream.pipeline.decision import Read
from semistream.stores import MasterStore
from semistream.stores.paged.manifest import Manifest

if TYPE_CHECKING:
    from semistream.changes.duplicates import SeenKeys
    from semistream.pipeline.steps.lookup import Lookup

SEEN = "_seen"  # the name of the keys that were loaded, among the masters


@dataclass(frozen=True)
class Masters:
    versions: dict[str, int]
    seen: Path | None  # the store of the keys that were loaded
    stores: dict[str, MasterStore]  # those that the driver has opened, at these versions
    many: bool  # may a lookup give several rows for one, in these versions?


def find_newest(lookups: Iterable[Lookup], seen: SeenKeys | None) -> dict[str, Read]:
    found = {one.name: Read.of(Manifest.load(one.store)) for one in lookups}
    return found | ({SEEN: Read.of(seen.store.latest())} if seen is not None else {})
