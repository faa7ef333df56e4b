"""A join in a process of its own: batches go there and come back as Arrow messages over a socket.

The process is started when the first stream begins, keeps its cache from stream to stream, and ends with the object.
A stream that is abandoned ends it too; the next one starts another. It is a program of its own, since
multiprocessing would run the caller's script once more.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection

import pyarrow as pa

from semistream.budget import Budget
from semistream.errors import SemistreamError
from semistream.joins.contract import Join, JoinSettings
from semistream.lookup.bind import LookupPlan
from semistream.stats import Stats
from semistream.stores.contract import Store

_MESSAGE_ROWS = 8_192


class RemoteNode:
    """Looks like the join that runs elsewhere, as far as a parallel join asks for it."""

    def __init__(
        self, kind: type[Join], store: Store, plan: LookupPlan, memory_bytes: int, settings: JoinSettings
    ) -> None:
        self._arguments = kind, store, plan, memory_bytes, settings
        self._plan = plan
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: Connection | None = None
        self.stats = Stats(master_version=store.version)
        self._before = self.stats  # what processes counted that are gone
        self.unmatched_sample: list[object] = []

    def _start(self) -> Connection:
        if self._ours is not None and self._process is not None and self._process.poll() is None:
            return self._ours
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        connection = Connection(ours.detach())
        connection.send(self._arguments)
        weakref.finalize(self, _end, self._process)
        self._ours = connection
        return connection

    def join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `Join.join`."""
        ours = self._start()
        sender = threading.Thread(target=_send, args=(ours, batches), daemon=True)
        sender.start()
        done = False
        try:
            while data := ours.recv_bytes():
                yield pa.ipc.read_record_batch(pa.py_buffer(data), self._plan.output)
            result = ours.recv()
            done = True
        except (EOFError, OSError):
            raise SemistreamError("a node of the parallel join ended unexpectedly, for lack of memory maybe") from None
        finally:
            if not done:
                self._stop()
            sender.join()
        if isinstance(result, BaseException):
            self._stop()
            raise result
        self.stats, self.unmatched_sample = self._before + result[0], result[1]

    def _stop(self) -> None:
        if self._process is not None:
            _end(self._process)
        if self._ours is not None:
            self._ours.close()
        self._process, self._ours, self._before = None, None, self.stats

    def check(self) -> None:
        """The node checks itself at the end of every stream."""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def _send(connection: Connection, batches: Iterable[pa.RecordBatch]) -> None:
    with contextlib.suppress(OSError):  # the node is gone, which the receiver notices
        for batch in batches:
            connection.send_bytes(batch.serialize())
        connection.send_bytes(b"")


class _Messages:
    """Small batches as larger ones: a message costs as much as some thousand rows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _MESSAGE_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._connection.send_bytes(pa.concat_batches(self._waiting).serialize())
            self._waiting, self._rows = [], 0


def serve(number: int) -> None:
    """The process: one stream after the other, over the socket of this number, until one fails."""
    connection = Connection(number)
    pa.set_cpu_count(1)
    kind, store, plan, memory, settings = connection.recv()

    def feed(messages: _Messages) -> Iterator[pa.RecordBatch]:
        while data := connection.recv_bytes():
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), plan.stream)
            yield batch
            if batch.num_rows == 0:  # nothing came for a while: what the join gave out must not wait here either
                messages.flush()

    with contextlib.suppress(EOFError, OSError):  # the other side is gone
        try:
            join: Join = kind(store, plan, Budget(memory), settings)
            while True:
                messages = _Messages(connection)
                for batch in join.join(feed(messages)):
                    messages.add(batch)
                messages.flush()
                join.check()
                connection.send_bytes(b"")
                connection.send((join.stats.copy(), join.unmatched_sample))
        except SemistreamError as error:
            connection.send_bytes(b"")
            connection.send(error)
