"""Which version of the master a micro-batch reads: pinned once, found again on replay.

The first one who asks for (query id, batch id) writes the pin; the others read it, and so does a replay. It names the
content (`StoreVersion`), and a task that finds other content refuses it. On one host the tasks read the files. Hosts of
a cluster may have copies of different age, so their tasks ask the driver's Python process over TCP, in JSON lines
signed with a secret that travels with the tasks. Behind a firewall, ``spark.semistream.port`` fixes the port.
"""

import hmac
import json
import re
import secrets
import socket
import socketserver
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semistream import errors
from semistream.durable import create_once, read_once
from semistream.errors import ArgumentError, SemistreamError, StoreNotFoundError
from semistream.spark.frames import context_of
from semistream.stores.paged.manifest import Manifest, StoreVersion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PORT = "spark.semistream.port"
_KEPT_BATCHES = 100  # as many as Spark keeps of its own log by default
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(second|minute|hour|day)s?\s*")
_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
_TIMEOUT_SECONDS = 60.0
_MOST_BYTES = 65_536  # of a question or an answer
_services: dict[str, "PinService"] = {}
_starting = threading.Lock()


def refresh_seconds(refresh: str) -> float | None:
    """ "every_batch" is 0, "never" is None, "5 minutes" is 300."""
    if refresh == "every_batch":
        return 0.0
    if refresh == "never":
        return None
    found = _DURATION.fullmatch(refresh) if isinstance(refresh, str) else None
    if found is None:
        raise ArgumentError(
            f"refresh={refresh!r} is not known; use 'every_batch', 'never', or a time such as '5 minutes'"
        )
    return float(found.group(1)) * _SECONDS[found.group(2)]


def running_batch() -> tuple[str, int] | None:
    """The query's id and the batch's number of the running task; None outside of a stream."""
    from pyspark import TaskContext

    if (context := TaskContext.get()) is None:
        return None
    query, batch = map(context.getLocalProperty, ("sql.streaming.queryId", "streaming.sql.batchId"))
    return None if query is None or batch is None else (query, int(batch))


def running_attempt() -> str:
    """Which attempt at which task runs here; empty outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "" if context is None else str(context.taskAttemptId())


def pinned_version(root: Path, query: str, batch: int, refresh: str, planned: StoreVersion) -> StoreVersion:
    """The version for this batch, decided by the first one who asks; "never" keeps the query's ``planned`` one."""
    directory = root / "pins" / "".join(c if c.isalnum() or c == "-" else "_" for c in query)
    path = directory / f"{batch:09d}.json"
    while (found := _read(path)) is None:
        if not Manifest.versions(root):
            raise StoreNotFoundError(f"there is no semistream store at {root} any more; restore it and start again")
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        create_once(path, {**_choose(root, directory, batch, refresh, planned), "query": query, "batch": batch})
        for old in directory.glob("[0-9]*.json"):
            if int(old.stem) < batch - _KEPT_BATCHES:
                old.unlink(missing_ok=True)
    if found["version"] not in Manifest.versions(root):
        raise StoreNotFoundError(
            f"batch {batch} of query {query} was begun with version {found['version']} of {root}, which is gone "
            f"(vacuum?); the replay cannot give the same rows. Restore it, or delete the pin {path} to accept the "
            "newest version"
        )
    if "store_id" not in found:  # written before stores had ids
        return Manifest.load(root, found["version"]).identity
    return StoreVersion(found["store_id"], found["version"], found["digest"])


def _choose(root: Path, directory: Path, batch: int, refresh: str, planned: StoreVersion) -> dict[str, Any]:
    seconds = refresh_seconds(refresh)
    now = time.time()
    earlier = sorted(p for p in directory.glob("[0-9]*.json") if int(p.stem) < batch)
    last = _read(earlier[-1]) if earlier else None
    if last is not None and (seconds is None or now - float(last["since"]) < seconds):
        return last
    chosen = planned if seconds is None else Manifest.load(root).identity
    return {"store_id": chosen.store_id, "version": chosen.number, "digest": chosen.digest, "since": now}


def _read(path: Path) -> dict[str, Any] | None:
    return read_once(path, ("version", "since"), "let the batch choose the newest version")


@dataclass(frozen=True)
class PinService:
    """Where the driver answers, and the secret that shows who asks."""

    host: str
    port: int
    secret: bytes = field(repr=False)

    def ask(self, root: str, query: str, batch: int, refresh: str, planned: StoreVersion) -> StoreVersion:
        """The version for this batch, as the driver decided; raises what it raised."""
        nonce = secrets.token_hex(16)
        question = {"root": root, "query": query, "batch": batch, "refresh": refresh, "planned": asdict(planned)}
        try:
            with socket.create_connection((self.host, self.port), _TIMEOUT_SECONDS) as connection:
                connection.sendall(_signed({"nonce": nonce, **question}, self.secret))
                with connection.makefile("rb") as lines:
                    answer = _checked(lines.readline(_MOST_BYTES), self.secret)
        except OSError as error:
            raise SemistreamError(
                f"the driver does not say at {self.host}:{self.port} which version of {root} batch {batch} reads "
                f"({error}). Executors must reach it there; where a firewall is in between, set {PORT} to an open port"
            ) from error
        if answer is None or answer.get("nonce") != nonce:
            raise SemistreamError(
                f"what answers at {self.host}:{self.port} is not the driver of this query; is it gone?"
            )
        if "error" in answer:
            kind = getattr(errors, answer["error"], SemistreamError)
            raise kind(answer["message"])
        return StoreVersion(**answer["version"])


def pin_service(spark: "SparkSession") -> PinService | None:
    """The application's service, started when first needed; None on one host, and with Connect: this is no driver."""
    context = context_of(spark)
    if context is None or str(context.master).startswith("local"):
        return None
    conf, name = context.getConf(), str(context.applicationId)
    with _starting:
        if name not in _services:
            host = conf.get("spark.driver.host", "localhost")
            _services[name] = serve(host, conf.get("spark.driver.bindAddress", host), int(conf.get(PORT, "0")))
        return _services[name]


def serve(host: str, bind: str, port: int = 0) -> PinService:
    """Answer from now on, at an address that executors know as ``host``, for as long as this process lives."""
    server = _Server((bind, port))
    threading.Thread(target=server.serve_forever, name="semistream-pins", daemon=True).start()
    return PinService(host, server.server_address[1], server.secret)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.secret = secrets.token_bytes(32)
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asks in another way is not answered; the asker says what is wrong."""


class _Handler(socketserver.StreamRequestHandler):
    timeout = _TIMEOUT_SECONDS

    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        asked = _checked(self.rfile.readline(_MOST_BYTES), self.server.secret)
        if asked is None:
            return
        planned = StoreVersion(**asked["planned"])
        answer: dict[str, Any] = {"nonce": asked["nonce"]}
        try:
            found = pinned_version(Path(asked["root"]), asked["query"], asked["batch"], asked["refresh"], planned)
            answer["version"] = asdict(found)
        except (SemistreamError, OSError) as error:
            answer |= {"error": type(error).__name__, "message": str(error)}
        self.wfile.write(_signed(answer, self.server.secret))


def _signed(body: dict[str, Any], secret: bytes) -> bytes:
    text = json.dumps(body)
    return json.dumps([text, hmac.digest(secret, text.encode(), "sha256").hex()]).encode() + b"\n"


def _checked(line: bytes, secret: bytes) -> dict[str, Any] | None:
    """What was signed with the secret; None for anything else."""
    try:
        text, signature = json.loads(line)
        good = hmac.compare_digest(hmac.digest(secret, text.encode(), "sha256").hex().encode(), signature.encode())
        return dict(json.loads(text)) if good else None
    except (ValueError, TypeError, AttributeError):
        return None
