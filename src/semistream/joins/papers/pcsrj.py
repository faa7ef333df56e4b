"""PCSRJ, the parallel cache join (Naeem and others): R and S are split, one cache join a node.

Idea: a key belongs to one node, so nodes need not talk to each other; the rates add up.
Budget: every node gets an equal share, divided as SSCJ does: its own cache, stream table and disk buffer.
Invariants: the nodes together give what one node would; a key is seen by one node only.
Departures: R is split by partitions in turn, not by hash of the key (as in Spark), so that a partition that is read
holds keys of one node only, without a copy of R for each; where keys are ranks the first node then gets more of the
stream. The printed model doubles cost and numerator and predicts no gain; rates are added up instead.
"""

import contextlib
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np
import pyarrow as pa

from semistream.budget import Budget
from semistream.errors import ArgumentError, SemistreamError, choose
from semistream.joins.contract import Join, JoinSettings, Prediction, Scenario
from semistream.joins.output import MOST_BYTES, MOST_ROWS, pieces
from semistream.joins.papers.partitions import Partitions
from semistream.joins.papers.sscj import SemiStreamCacheJoin, SscjSettings
from semistream.joins.threads import side_by_side
from semistream.lookup.bind import LookupPlan
from semistream.rows import no_rows
from semistream.stats import Stats
from semistream.stores.contract import PageStore, Store

_AHEAD = 4  # batches that wait between the threads
_MESSAGE_ROWS = 8_192  # at least, if they are not wide, between processes: a message costs as much as some thousand
Input = queue.Queue[pa.RecordBatch | None]  # a node's part of the stream; None at its end


@dataclass(frozen=True)
class PcsrjSettings(JoinSettings):
    """Threads begin at once; processes take a second to begin, and do not wait for each other's interpreter."""

    nodes: int = 2
    workers: str = "threads"

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 64:
            raise ArgumentError(f"nodes={self.nodes} must be from 1 to 64")
        choose("workers", self.workers, ("threads", "processes"))


class ParallelCacheJoin(Join):
    name = "pcsrj"
    idea = "the stream split by key over several cache joins that run side by side"
    settings_type = PcsrjSettings
    settings: PcsrjSettings
    needs = SemiStreamCacheJoin.needs
    least_bytes = SemiStreamCacheJoin.least_bytes

    def _set_up(self) -> None:
        count, share, settings = self._nodes(self.scenario)
        self.budget.require("nodes", count * share)
        buffer = SemiStreamCacheJoin.divide(replace(self.scenario, memory_bytes=share, settings=settings)).buffer
        parts = Partitions(cast("PageStore", self.store), buffer)
        self._firsts = parts.first_codes[: parts.of_base()]
        kind = SemiStreamCacheJoin if self.settings.workers == "threads" else RemoteNode
        self.nodes: list[Node] = [
            kind(self.store, self.plan, Budget(share, given=self.budget.given), settings) for _ in range(count)
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
        """Send every tuple to the node of its partition, or without a key to the first; a batch without any to all."""
        quiet = no_rows(self.plan.stream)
        try:
            for batch in batches:
                if batch.num_rows == 0 and not all(_put(one, quiet, stop) for one in inputs):
                    return
                for piece in pieces(batch, MOST_ROWS, self.plan.stream):
                    codes, valid = self.plan.codec.encode([piece.column(name) for name in self.plan.stream_keys])
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
    def model(cls, scenario: Scenario) -> Prediction:
        """A node serves its part of R and of the stream, with its share of the memory."""
        count, share, settings = cls._nodes(scenario)
        one = SemiStreamCacheJoin.model(replace(scenario, memory_bytes=share, settings=settings, part=1 / count))
        return replace(one, nodes=count, remark=f"{one.remark}, in a node of {count}")


class RemoteNode:
    """A node that runs in a process of its own: batches go there and come back as Arrow messages. The process keeps its
    cache from stream to stream, and ends with the object or with a stream that is abandoned; the next one starts
    another. It is a program of its own, since multiprocessing would run the caller's script once more.
    """

    def __init__(self, store: Store, plan: LookupPlan, budget: Budget, settings: SscjSettings) -> None:
        self._arguments = store, plan, budget, settings
        self._output = plan.output
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: Connection | None = None
        self.stats = Stats(master_version=store.version)
        self._before = self.stats  # what processes counted that are gone
        self.unmatched_sample: list[object] = []

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        if self._process is not None and self._ours is not None and self._process.poll() is None:
            return self._process, self._ours
        ours, theirs = Pipe()
        command = [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"]
        with theirs:
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        ours.send(self._arguments)
        weakref.finalize(self, _end, process)
        self._process, self._ours = process, ours
        return process, ours

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `Join.join`."""
        process, ours = self._start()
        sender = threading.Thread(target=_send, args=(ours, batches), daemon=True)
        sender.start()
        result: Any = None
        try:
            while data := ours.recv_bytes():
                yield pa.ipc.read_record_batch(pa.py_buffer(data), self._output)
            result = ours.recv()
        except (EOFError, OSError):
            raise SemistreamError("a node of the parallel join ended unexpectedly, for lack of memory maybe") from None
        finally:
            if not isinstance(result, tuple):  # the process has ended, or its stream is abandoned
                _end(process)
                ours.close()
                self._process, self._before = None, self.stats
            sender.join()
        if isinstance(result, SemistreamError):
            raise result
        self.stats, self.unmatched_sample = self._before + result[0], result[1]

    def check(self) -> None:
        """The node checks itself at the end of every stream."""


Node = SemiStreamCacheJoin | RemoteNode


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def _send(connection: Connection, batches: Iterable[pa.RecordBatch]) -> None:
    with contextlib.suppress(OSError):  # the node is gone, which the receiver notices
        for batch in batches:
            connection.send_bytes(batch.serialize())
        connection.send_bytes(b"")


def serve(number: int) -> None:
    """The process: one stream after the other, over the socket of this number, until one fails."""
    connection = Connection(number)
    pa.set_cpu_count(1)
    store, plan, budget, settings = connection.recv()
    made: list[pa.RecordBatch] = []

    def send() -> None:
        if made:
            connection.send_bytes(pa.concat_batches(made).serialize())
            made.clear()

    def feed() -> Iterator[pa.RecordBatch]:
        while data := connection.recv_bytes():
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), plan.stream)
            yield batch
            if batch.num_rows == 0:  # nothing came for a while: what the join gave out must not wait here either
                send()

    with contextlib.suppress(EOFError, OSError):  # the other side is gone
        try:
            join = SemiStreamCacheJoin(store, plan, budget, settings)
            while True:
                for batch in join.join(feed()):
                    made.append(batch)
                    if sum(len(one) for one in made) >= _MESSAGE_ROWS or sum(one.nbytes for one in made) >= MOST_BYTES:
                        send()
                send()
                join.check()
                connection.send_bytes(b"")
                connection.send((join.stats.copy(), join.unmatched_sample))
        except SemistreamError as error:
            connection.send_bytes(b"")
            connection.send(error)


def _joined(node: Node, batches: Input, stop: threading.Event) -> Iterator[pa.RecordBatch]:
    """What a node makes of its part; when one fails, the others need not wait for theirs."""
    try:
        yield from node.join(iter(lambda: _get(batches, stop), None))
    except BaseException:
        stop.set()
        raise


def _put(where: Input, what: pa.RecordBatch | None, stop: threading.Event) -> bool:
    while not stop.is_set():
        with contextlib.suppress(queue.Full):
            where.put(what, timeout=0.05)
            return True
    return False


def _get(where: Input, stop: threading.Event) -> pa.RecordBatch | None:
    while not stop.is_set():
        with contextlib.suppress(queue.Empty):
            return where.get(timeout=0.05)
    return None
