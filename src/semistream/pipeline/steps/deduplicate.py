"""``deduplicate``: the first row of a business key, of all that ever came."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.budget import check_bytes
from semistream.errors import ArgumentError
from semistream.pipeline.decision import SEEN, Masters
from semistream.pipeline.memory import Claim, Memory
from semistream.pipeline.routes import DUPLICATE, KEYS, QUARANTINE, ROUTE, leave
from semistream.pipeline.staging import Route
from semistream.pipeline.steps.contract import Known, Step, StepForm
from semistream.spark import enrich
from semistream.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.changes.duplicates import SeenKeys
    from semistream.pipeline.layout import Layout, Schemas

_FOUND = "_ss_found"
_FIRST = "_ss_first"


@dataclass(frozen=True)
class Deduplicate(Step):
    """Let the first row of a business key through, of all that ever came."""

    key: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    memory: int | str | None = None

    @property
    def remembers(self) -> tuple[str, ...]:
        return self.key

    def check(self, known: Known) -> None:
        """By columns of the source, before rows become several, once in a pipeline."""
        word = "deduplicate"
        for name in (*self.key, *self.order_by):
            known.need([name], word)
            if known.source is not None and name not in known.source:
                raise known.error(word, f"{name!r} must be a column of the source, not a computed one")
        if known.several:
            message = "may give several rows for one, all but one of which would go; put this step before it"
            raise known.error(word, f"{known.several!r} {message}")
        if known.deduplicated:
            raise known.error(word, "a pipeline can deduplicate once; name all columns of the key in it")
        known.deduplicated = True

    def describe(self, memory: Memory) -> list[str]:
        return [f"deduplicate by {', '.join(self.key)}"]

    def claim(self, seen: "SeenKeys | None") -> Claim | None:
        return None if seen is None else Claim(SEEN, seen.store, (), "auto", self.memory, grows=True)

    def apply(self, frame: "DataFrame", layout: "Layout", masters: Masters) -> "DataFrame":
        """The first row of each business key goes on: the first of this batch, if no batch before had one."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        assert masters.seen is not None
        for name in self.key:
            frame = leave(frame, f"{quoted(name)} IS NULL", QUARANTINE, f"{name} is NULL, part of the business key")
        others = [name for name in layout.original if name not in (*self.key, *self.order_by)]
        window = Window.partitionBy(*map(quoted, self.key))
        window = window.orderBy(F.col(ROUTE).isNotNull(), *map(quoted, (*self.order_by, *others)))
        frame = frame.withColumn(_FIRST, F.row_number().over(window) == 1)
        frame = leave(frame, f"NOT {_FIRST}", DUPLICATE, "again in the same batch").drop(_FIRST)
        frame = enrich(
            frame,
            masters.seen,
            on=list(self.key),
            columns=[],
            memory=layout.memory[SEEN].memory_bytes,
            master_version=masters.versions[SEEN],
            status=_FOUND,
            allow_empty=True,
            tasks_per_host=layout.tasks,
        )
        return leave(frame, f"{_FOUND} = 'matched'", DUPLICATE, "loaded before").drop(_FOUND)

    def routes(self, number: int, layout: "Layout", schemas: "Schemas", staging: str, started: float) -> list[Route]:
        fields = [pa.field(name, schemas.hidden[name]) for name in self.key]
        return [Route(KEYS, self.key, pa.schema(fields), staging)]


def deduplicate(*key: str, order_by: str | Sequence[str] = (), memory: int | str | None = None) -> Deduplicate:
    """Let only the first row of a business key through, of this batch and of all before it. Within a batch the first by
    ``order_by`` is taken (and by all other columns, so that a replay takes the same).
    """
    if not key or not all(isinstance(name, str) and name for name in key):
        raise ArgumentError(f"deduplicate{key!r}: name the columns of the business key, as in deduplicate('sale_id')")
    if memory is not None:
        check_bytes(memory)
    order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    return Deduplicate(key, order, memory)


FORM = StepForm(
    "deduplicate",
    lambda value, _, **settings: deduplicate(*([value] if isinstance(value, str) else value), **settings),
    StepForm.settings_of(deduplicate),
)
