"""Marks: how far a stream has come in a table or a warehouse, and whose it is.

A mark is a name with a number. They are kept with the data and change in the same commit: in Delta as application
transactions, in PostgreSQL as rows. Whatever keeps them, a batch is judged here.

    sales@<query>           the last batch of this query
    sales                   the query that owns the stream: the first digits of its id
    sales@<query>/facts     the last batch of this query that wrote to the table facts
    @mirror/product         the version of the store that the table product mirrors
    @store/product          that store: the first digits of its id
    @digest/product         that version, times 2^32, and the checksum of its manifest
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from semistream.errors import ArgumentError, ForeignCheckpointError, MissingBatchesError, StaleWriterError
from semistream.stores.paged.manifest import StoreVersion

if TYPE_CHECKING:
    from semistream.warehouse.contract import BatchWrites

Find = Callable[[str], int | None]  # a mark by its name, in one snapshot

MIRRORS = ("mirror", "store", "digest")  # the kinds of marks above that begin with '@'
_OWNER_DIGITS = 15  # of the 32 of a query's id: 60 bits, what fits a transaction's signed 64-bit version
_RESTART = "Stop one of the two; a restart goes on where the table is"


class Marks(NamedTuple):
    """What one snapshot says of a stream: the query's last batch (-1: none), and who owns the stream."""

    done: int
    owner: int | None

    @staticmethod
    def of(find: Find, app: str, query: str) -> "Marks":
        done = find(f"{app}@{query}")
        return Marks(-1 if done is None else done, find(app))


def check_app(app: object) -> str:
    """A stream's name, or an error."""
    if not isinstance(app, str) or not app or "@" in app:
        raise ArgumentError(f"app={app!r} is no name; give the stream a name without '@' that stays, such as 'sales'")
    return app


def check_query(query: object) -> str:
    """A query's id as Spark writes it, or an error."""
    try:
        return str(uuid.UUID(str(query)))
    except ValueError:
        raise ArgumentError(f"query={query!r} is not the id of a query; Spark's StreamingQuery.id is one") from None


def table_mark(app: str, query: str, table: str) -> str:
    """Where the last batch of the query that wrote to the table is kept."""
    return f"{app}@{query}/{table}"


def mirror_mark(table: str, kind: str = "mirror") -> str:
    """Where one of `MIRRORS` is kept of the version that the table mirrors. No stream's mark begins with '@'."""
    return f"@{kind}/{table}"


def mirror_marks(table: str, version: int, store: StoreVersion | None) -> dict[str, int]:
    """What a commit of this version leaves behind; a store of before there were ids has none."""
    marks = {mirror_mark(table): version}
    if store is not None and store.store_id:
        marks[mirror_mark(table, "store")] = store_number(store.store_id)
        marks[mirror_mark(table, "digest")] = (version << 32) | store.digest
    return marks


def stale_mirror(place: object, version: int, now: int | None) -> StaleWriterError:
    """The error for a version that met another run's."""
    what = "it was made anew" if now is None else f"another run mirrored version {now}"
    return StaleWriterError(
        f"{place}: {what} while version {version} was on its way, so this one was not written. Stop one of the two"
    )


def stream_marks(app: str, query: str, batch: int) -> dict[str, int]:
    """What a commit of this batch leaves behind."""
    return {f"{app}@{query}": batch, app: store_number(query)}


@dataclass
class Streams:
    """The streams of a table or a warehouse as this process knows them: here their batches are judged."""

    place: str  # for people, as is the permit: what lets another query go on
    permit: str = "replaces={former!r}"
    replaces: dict[str, str] = field(default_factory=dict)  # the first digits of the query that another may follow
    left: dict[tuple[str, str], int] = field(default_factory=dict)  # the last batch of a query, as it was left here

    def check(self, find: Find, app: str, query: str, replaces: str | None = None) -> int:
        """As `Warehouse.check`; ``replaces``, once given, is kept for the batches to come."""
        app, query = check_app(app), check_query(query)
        if replaces is not None:
            self.replaces[app] = digits_of(replaces)
        marks = Marks.of(find, app, query)
        self._is_foreign(marks, app, query)
        return marks.done

    def holds(self, marks: Marks, batch: "BatchWrites", *, gaps: bool = False) -> bool:
        """Whether the batch is there already; one that must not be written is an error."""
        if not self._is_foreign(marks, batch.app, batch.query):
            self._check_order(marks, batch, gaps=gaps)
        if batch.batch > marks.done:
            return False
        self.left[batch.app, batch.query] = marks.done
        return True

    def check_new(self, marks: Marks, batch: "BatchWrites") -> None:
        """Refuse a batch that could not be written now: one that is there although nobody has decided it, too."""
        if self.holds(marks, batch):
            raise self.undecided(batch)

    def wrote(self, batch: "BatchWrites") -> None:
        """The batch was committed here."""
        self.left[batch.app, batch.query] = batch.batch

    def undecided(self, batch: "BatchWrites", place: object = None) -> StaleWriterError:
        """The error for a batch that is new to its state and not new to the table."""
        return StaleWriterError(
            f"{place or self.place} holds batch {batch.batch} of {batch.app!r} already, which this state has not "
            "decided: another copy of the state has gone on with it, or an older copy was put back. Nothing was "
            "written. Go on with the newest copy"
        )

    def stale(self, batch: "BatchWrites", place: object = None) -> StaleWriterError:
        """The error for a batch that met another run's commit."""
        return StaleWriterError(
            f"{place or self.place}: another run wrote to the table while batch {batch.batch} of {batch.app!r} was on "
            f"its way, so this batch was not written. {_RESTART}"
        )

    def _is_foreign(self, marks: Marks, app: str, query: str) -> bool:
        """Whether another query owns the stream and may be replaced; one that may not be is an error."""
        if marks.owner is None or marks.owner == store_number(query):
            return False
        digits = f"{marks.owner:0{_OWNER_DIGITS}x}"
        former = f"{digits[:8]}-{digits[8:12]}-{digits[12:]}"
        if not self.replaces.get(app, "").startswith(digits):
            raise ForeignCheckpointError(
                f"{self.place} holds batches of {app!r} that were written under another checkpoint (query "
                f"{former}…). Under this one (query {query}) Spark begins anew, and rows that are there already "
                "would be added again. Restore the old checkpoint, or write to an empty table; if only new rows "
                f"come in, go on with {self.permit.format(former=former)}"
            )
        return True

    def _check_order(self, marks: Marks, batch: "BatchWrites", *, gaps: bool) -> None:
        left = self.left.get((batch.app, batch.query), marks.done)
        if left != marks.done:
            del self.left[batch.app, batch.query]  # whoever restarts with this object begins from what the table says
            raise StaleWriterError(
                f"{self.place}: {batch.app!r} was left at batch {left} and is now at batch {marks.done}. Another run "
                f"works on the same checkpoint; batch {batch.batch} was not written. {_RESTART}"
            )
        if batch.batch > marks.done + 1 and not gaps:
            there = "holds no batch" if marks.done < 0 else f"ends with batch {marks.done}"
            raise MissingBatchesError(
                f"{self.place} {there} of {batch.app!r}, but Spark's checkpoint is at batch {batch.batch}: those "
                "between are missing. Was the table deleted, moved or set back? Restore it, or start again with a new "
                "checkpoint and an empty table. The sink must be called for every batch, empty ones too"
            )


def store_number(store: str) -> int:
    """The number that stands for a store's id, or for that of a query."""
    return int(store.replace("-", "")[:_OWNER_DIGITS], 16)


def digits_of(query: str) -> str:
    """The digits of a query's id or of its beginning, as the error that refused the checkpoint shows it."""
    digits = query.replace("-", "").rstrip("…").lower()
    if len(digits) < _OWNER_DIGITS or set(digits) - set("0123456789abcdef"):
        raise ArgumentError(
            f"replaces={query!r} is not the id of a query; the error that refused the checkpoint names it"
        )
    return digits
