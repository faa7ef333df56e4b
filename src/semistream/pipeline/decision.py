"""What a batch reads and what is decided on it. The ledger keeps both; `batch` carries the decision out."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from semistream.pipeline.routes import HELD, SHED, UNMATCHED
from semistream.stores import MasterStore
from semistream.stores.paged.manifest import Manifest
from semistream.warehouse.contract import BatchWrites

if TYPE_CHECKING:
    from semistream.changes.duplicates import SeenKeys
    from semistream.pipeline.steps.lookup import Lookup

SEEN = "_seen"  # the name of the keys that were loaded, among the masters
# Rows that come, anew or again, and where they went: the sums of both are the same for every batch.
CAME = ("rows_in", "released", "retried", "reconciled")
WENT = ("enriched", "unmatched", "held", "shed", "quarantined", "duplicates", "filtered")
COUNTS = (*CAME, *WENT)
WAITED = {"released": HELD, "retried": UNMATCHED, "reconciled": SHED}  # how rows that come again had left


class Read(NamedTuple):
    """Which version of which store a batch reads: by its number alone, one built again or restored looks the same."""

    store: str  # the store's id; empty for one that was written before there were ids
    number: int
    digest: int | None = None  # of the version's manifest; states of before it was kept have none

    @staticmethod
    def of(store: Manifest | MasterStore) -> "Read":
        identity = (store if isinstance(store, Manifest) else store.manifest).identity
        return Read(identity.store_id, identity.number, identity.digest)

    def is_part_of(self, now: Manifest, path: Path) -> bool | None:
        """Is it version ``now`` of the store at ``path``, or one before it? None when that can no longer be known."""
        back = now.version - self.number
        if back < 0 or self.store != now.store_id:
            return False
        digest = f"{now.identity.digest:08x}{now.ancestors}"[8 * back : 8 * back + 8]
        try:
            found = int(digest, 16) if digest else Manifest.read(path, self.number).identity.digest
        except FileNotFoundError:  # vacuumed
            return None
        return None if self.digest is None else found == self.digest


def find_newest(lookups: "Iterable[Lookup]", seen: "SeenKeys | None") -> dict[str, Read]:
    found = {one.name: Read.of(Manifest.load(one.store)) for one in lookups}
    return found | ({SEEN: Read.of(seen.store.latest())} if seen is not None else {})


@dataclass(frozen=True)
class Masters:
    """Masters as one batch reads them: each at a version, which a replay reads again."""

    versions: dict[str, int]
    seen: Path | None  # the store of the keys that were loaded
    stores: dict[str, MasterStore]  # those that the driver has opened, at these versions
    many: bool  # may a lookup give several rows for one, in these versions?


@dataclass(frozen=True)
class HeldFile:
    """A Parquet file of held rows, all waiting for one master."""

    master: str
    path: str
    rows: int
    bytes: int
    oldest: float  # when its first row began to wait, in seconds since 1970


@dataclass(frozen=True)
class Decision:
    """All that a batch does, decided once."""

    writes: BatchWrites
    masters: dict[str, int]  # the version of each that was read
    counts: dict[str, int]  # of this batch, by COUNTS
    lookups: dict[str, dict[str, int]]  # matched and unmatched of each
    totals: dict[str, int]  # of all batches up to here
    held: tuple[HeldFile, ...] = ()
    seen: tuple[str, ...] = ()  # files of business keys that the warehouse will then hold
    dimensions: dict[str, int] = field(default_factory=dict)  # the version that each table must mirror first
    seconds: float = 0.0
    decided_at: float = 0.0
    sequence: int = 0  # of all decisions, whatever their kind
    stores: dict[str, str] = field(default_factory=dict)  # the id of each master's store
    started_at: float | None = None
    digests: dict[str, int] = field(default_factory=dict)  # of each master's version
    dimension_digests: dict[str, int] = field(default_factory=dict)  # of each version that a table must mirror
    driver_bytes: int = 0  # that the driver took at most since the decision before: rows that wait, members, keys

    @property
    def began(self) -> float:
        """When the batch began, in seconds since 1970."""
        return self.decided_at - self.seconds if self.started_at is None else self.started_at

    @property
    def read(self) -> dict[str, Read]:
        """What was read of each master."""
        return {name: Read(self.stores.get(name, ""), at, self.digests.get(name)) for name, at in self.masters.items()}

    def to_json(self) -> dict[str, Any]:
        """For the ledger; files are named, wherever the state is."""
        held = [{**asdict(one), "path": Path(one.path).name} for one in self.held]
        seen = [Path(path).name for path in self.seen]
        return {**asdict(self), "writes": self.writes.to_json(), "held": held, "seen": seen}

    @staticmethod
    def from_json(body: dict[str, Any], held: Path) -> "Decision":
        """As `to_json` wrote it, with the files in the directory ``held``. Older decisions have whole paths."""
        segments = tuple(HeldFile(**{**item, "path": str(held / Path(item["path"]).name)}) for item in body["held"])
        seen = tuple(str(held / Path(path).name) for path in body["seen"])
        return Decision(**{**body, "writes": BatchWrites.from_json(body["writes"]), "seen": seen, "held": segments})
