"""Relief for a pipeline whose stream is too fast: some rows of a batch wait in a table, until there is time.

    source ──► too many? ──► steps ──► sales
                  └──► sales_shed ──► semistream reconcile ──► steps ──► sales

What share of a batch goes on is said when it begins (`share_of`); which rows these are is chosen by the strategy, block
by block, in the tasks. A batch that is computed again may choose other rows, so nothing is pinned: its decision counts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.pipeline.decision import Decision
from semistream.pipeline.routes import TOO_MANY
from semistream.pipeline.steps.contract import Step
from semistream.pipeline.steps.lookup import Lookup
from semistream.shedding import Shed
from semistream.shedding.intervals import KeptShare, PastBatch, share_of_batch
from semistream.shedding.shedder import Chooser, Matches, memory_of
from semistream.spark.frames import quoted
from semistream.spark.prepare import FrameFacts
from semistream.spark.shedding import shared_counts
from semistream.stores import MasterStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECENT = 10  # batches that tell what the pipeline can do
MOST_SECONDS = 10.0  # that a batch should take, where neither a rate nor a trigger says


def share_of(shed: Shed, recent: Sequence[Decision], most_seconds: float) -> float:
    """The share of the coming batch that goes on; ``recent`` are the batches before it, the newest first."""
    counts = [(one, one.counts["rows_in"]) for one in recent]
    past = [PastBatch(one.began, rows, rows - one.counts["shed"], one.seconds) for one, rows in counts]
    return share_of_batch(past, shed.max_rows_per_second, most_seconds=most_seconds)


@dataclass(frozen=True)
class Relief:
    """How a pipeline sheds; shipped to the workers."""

    shed: Shed
    counted: tuple[Lookup, ...] = ()  # those by which a row becomes several rows of output, or none
    counts_bytes: int = 0  # for the rows that keys have, of all counted masters together

    @staticmethod
    def of(shed: Shed, steps: Iterable[Step], source: Iterable[str], memory_bytes: int, tasks: int) -> "Relief":
        there = set(source)  # what is found or computed on the way is not known yet
        lookups = [one for step in steps for one in step.lookups if set(one.keys) <= there]
        return Relief(shed, tuple(lookups) if shed.kind.needs_counts else (), memory_of(shed, memory_bytes, tasks)[1])

    def mark(
        self, frame: "DataFrame", share: float, versions: dict[str, int], seeds: tuple[int, ...], weight: float
    ) -> "DataFrame":
        """The rows of a batch with a mark on those that are too many, and weights where the strategy samples."""
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.functions import arrow_udf

        name = self.shed.weight
        if share >= 1:
            # Rows that are tried again bring their weights.
            return frame if name is None or name in frame.columns else frame.withColumn(name, F.lit(weight))
        inputs = list(dict.fromkeys(column for one in self.counted for column in one.keys))
        shared = FrameFacts.of(frame).application

        def choose(blocks: Iterator[pa.Array]) -> Iterator[pa.Array]:
            return self._choose(blocks, share, versions, seeds, shared)

        kept = arrow_udf(choose, "double").asNondeterministic()  # type: ignore[call-overload] # as its stubs have it
        # A strategy that asks for no column still has to know how many rows there are.
        rows = F.struct(*(F.col(quoted(column)) for column in inputs)) if inputs else F.lit(True)
        frame = frame.withColumn(TOO_MANY, kept(rows))
        marked: dict[str, Any] = {} if name is None else {name: F.coalesce(F.col(TOO_MANY), F.lit(0.0))}
        return frame.withColumns({**marked, TOO_MANY: F.col(TOO_MANY).isNull()})

    def _choose(
        self, blocks: Iterator[pa.Array], share: float, versions: dict[str, int], seeds: tuple[int, ...], shared: str
    ) -> Iterator[pa.Array]:
        """In a task: the weight of each row that is kept, NULL for those that are too many."""
        from pyspark import TaskContext

        context, matches = TaskContext.get(), []
        assert context is not None
        for one in self.counted:
            store = MasterStore.open(one.store, versions[one.name])
            counts = shared_counts(store, self.counts_bytes // len(self.counted), shared)
            several = one.multiple == "all" and one.as_of is None
            matches.append(Matches(store.codec, one.keys, counts, several=several, leaves=one.leaves))
        chooser, part = Chooser(self.shed, matches, (*seeds, context.partitionId())), KeptShare(share)
        for block in blocks:
            yield chooser.weigh(len(block), part.of(len(block)), partial(pa.StructArray.field, block))
