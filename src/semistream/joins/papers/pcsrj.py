"""PCSRJ, the parallel cache join (Naeem and others): R and S are split, one cache join a node.

Idea: a key belongs to one node, so nodes need not talk to each other. Each has its share of the memory, its own cache,
stream table and disk buffer, its own part of R and of the stream; the rates add up.
Budget: every node gets an equal share, divided as SSCJ does.
Invariants: the nodes together give what one node would; a key is seen by one node only.
Departures: nodes are threads or processes here, and partitions in Spark's ``enrich``. R is split by partitions in turn,
not by hash of the key, so that a partition that is read holds keys of one node only, without a copy of R for each;
where keys are ranks the first node then gets more of the stream. (Spark splits by hash: there a read serves only the
keys of its own node.) The printed model doubles cost and numerator and
predicts no gain; rates are added up instead.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pyarrow as pa

from semistream.budget import Budget
from semistream.errors import ArgumentError, choose
from semistream.joins.contract import Join, JoinSettings, Prediction, Scenario
from semistream.joins.output import MOST_ROWS, pieces
from semistream.joins.papers.partitions import Partitions
from semistream.joins.papers.remote_node import RemoteNode
from semistream.joins.papers.sscj import SemiStreamCacheJoin, SscjSettings
from semistream.joins.threads import side_by_side
from semistream.lookup.bind import LookupPlan
from semistream.stores.contract import PageStore, StoreFacts

_AHEAD = 4  # batches that wait between the threads
Input = queue.Queue[pa.RecordBatch | None]  # a node's part of the stream; None at its end
Node = SemiStreamCacheJoin | RemoteNode


@dataclass(frozen=True)
class PcsrjSettings(JoinSettings):
    """How many nodes, and whether they are threads or processes.

    Threads begin at once; processes take a second to begin, and do not wait for each other's interpreter.
    """

    nodes: int = 2
    workers: str = "threads"

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 64:
            raise ArgumentError(f"nodes={self.nodes} must be from 1 to 64")
        choose("workers", self.workers, ("threads", "processes"))


class ParallelCacheJoin(Join):
    """One cache join a node; see the module."""

    name = "pcsrj"
    idea = "the stream split by key over several cache joins that run side by side"
    settings_type = PcsrjSettings
    settings: PcsrjSettings
    needs = SemiStreamCacheJoin.needs

    def _set_up(self) -> None:
        kind = SemiStreamCacheJoin
        count, share, settings = self._nodes(self.scenario)
        self.budget.require("nodes", count * share)
        buffer = kind.divide(replace(self.scenario, memory_bytes=share, settings=settings)).buffer
        parts = Partitions(cast("PageStore", self.store), buffer)
        self._firsts = parts.first_codes[: parts.of_base()]
        self.nodes: list[Node] = [
            kind(self.store, self.plan, Budget(share), settings)
            if self.settings.workers == "threads"
            else RemoteNode(kind, self.store, self.plan, share, settings)
            for _ in range(count)
        ]

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        inputs: list[Input] = [queue.Queue(_AHEAD) for _ in self.nodes]
        stop, failed = threading.Event(), queue.SimpleQueue[BaseException]()
        before = [node.stats.copy() for node in self.nodes]
        # Not waited for: its source may block for ever, and it ends by itself once that comes back.
        threading.Thread(target=self._feed, args=(batches, inputs, stop, failed), daemon=True).start()
        made = side_by_side([_joined(node, one, stop) for node, one in zip(self.nodes, inputs, strict=True)])
        try:
            for batch in made:
                if not failed.empty():
                    break
                yield batch
            if not failed.empty():
                raise failed.get()
        finally:
            stop.set()
            made.close()
            for node, old in zip(self.nodes, before, strict=True):
                node.stats.since(old).move_to(self.stats)
            self.stats.cached_rows = sum(node.stats.cached_rows for node in self.nodes)
            self.stats.cached_bytes = sum(node.stats.cached_bytes for node in self.nodes)
            self.unmatched_sample = [key for node in self.nodes for key in node.unmatched_sample][:5]

    def _feed(
        self,
        batches: Iterable[pa.RecordBatch],
        inputs: list[Input],
        stop: threading.Event,
        failed: queue.SimpleQueue[BaseException],
    ) -> None:
        """Send every tuple to the node of its partition; those without a key to the first.

        A batch without tuples goes to all: nothing came for a while.
        """
        quiet = pa.RecordBatch.from_pylist([], self.plan.stream)
        try:
            for batch in batches:
                if batch.num_rows == 0 and not all(_put(one, quiet, stop) for one in inputs):
                    return
                for piece in pieces(batch, MOST_ROWS, self.plan.stream):
                    columns = [piece.column(name) for name in self.plan.stream_keys]
                    codes, valid = self.plan.codec.encode(columns)
                    node = np.searchsorted(self._firsts, codes, "right") % len(self.nodes)
                    node[~valid] = 0
                    for number, one in enumerate(inputs):
                        some = piece.take(pa.array(np.flatnonzero(node == number)))
                        if some.num_rows and not _put(one, some, stop):
                            return
        except BaseException as error:  # noqa: BLE001 - handed to the thread that reads
            failed.put(error)
            stop.set()
        finally:
            for one in inputs:
                _put(one, None, stop)

    def check(self) -> None:
        """Accounting, and every node's own invariants."""
        super().check()
        for node in self.nodes:
            node.check()

    @classmethod
    def _nodes(cls, scenario: Scenario) -> tuple[int, int, SscjSettings]:
        """How many nodes there are, the memory of each, and its settings."""
        least = cls.least_bytes(scenario.facts, scenario.plan)
        wanted = PcsrjSettings.of(scenario.settings).nodes
        count = max(1, min(wanted, scenario.memory_bytes // least))  # little memory makes fewer nodes
        # As large a buffer as a single node would have: a read then serves as many tuples.
        settings = SscjSettings(buffer_share=min(0.5, SscjSettings.buffer_share * count))
        return count, max(least, scenario.memory_bytes // count), settings

    @classmethod
    def least_bytes(cls, facts: StoreFacts, plan: LookupPlan) -> int:
        return SemiStreamCacheJoin.least_bytes(facts, plan)

    @classmethod
    def model(cls, scenario: Scenario) -> Prediction:
        """A node serves its part of R and of the stream, with its share of the memory."""
        count, share, settings = cls._nodes(scenario)
        one = SemiStreamCacheJoin.model(replace(scenario, memory_bytes=share, settings=settings, part=1 / count))
        return replace(one, nodes=count, remark=f"{one.remark}, in a node of {count}")


def _joined(node: Node, batches: Input, stop: threading.Event) -> Iterator[pa.RecordBatch]:
    """What a node makes of its part; when one fails, the others need not wait for theirs."""
    try:
        yield from node.join(iter(lambda: _get(batches, stop), None))
    except BaseException:
        stop.set()
        raise


def _put(where: Input, what: pa.RecordBatch | None, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            where.put(what, timeout=0.05)
            return True
        except queue.Full:
            continue
    return False


def _get(where: Input, stop: threading.Event) -> pa.RecordBatch | None:
    while not stop.is_set():
        try:
            return where.get(timeout=0.05)
        except queue.Empty:
            continue
    return None
