"""On a cluster the driver says which version of a master a batch reads: once, for the tasks of all hosts.

Hosts may have copies of a store of different age, so no task can decide for the others. Tasks ask the driver's Python
process over TCP; it pins the version in its own copy of the store, as tasks do on one host (`semistream.spark.pins`),
so a replay after a restart gets the same answer. Questions and answers are JSON lines, each signed with a secret that
travels with the tasks and never over this connection: whoever does not know it gets no answer, and cannot give one.

The port is any free one; where a firewall stands between executors and driver, set ``spark.semistream.port``.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import socketserver
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semistream import errors
from semistream.spark.frames import context_of
from semistream.spark.pins import pinned_version
from semistream.stores.paged.manifest import StoreVersion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PORT = "spark.semistream.port"
_SECONDS = 60.0
_MOST_BYTES = 65_536
_services: dict[str, PinService] = {}
_starting = threading.Lock()


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
            with socket.create_connection((self.host, self.port), _SECONDS) as connection:
                connection.sendall(_signed({"nonce": nonce, **question}, self.secret))
                with connection.makefile("rb") as lines:
                    answer = _checked(lines.readline(_MOST_BYTES), self.secret)
        except OSError as error:
            raise errors.SemistreamError(
                f"the driver does not say at {self.host}:{self.port} which version of {root} batch {batch} reads "
                f"({error}). Executors must reach it there; where a firewall is in between, set {PORT} to an open port"
            ) from error
        if answer is None or answer.get("nonce") != nonce:
            raise errors.SemistreamError(
                f"what answers at {self.host}:{self.port} is not the driver of this query; is it gone?"
            )
        if "error" in answer:
            kind = getattr(errors, answer["error"], errors.SemistreamError)
            raise kind(answer["message"])
        return StoreVersion(**answer["version"])


def pin_service(spark: SparkSession) -> PinService | None:
    """The service of this application, started when it is first needed; None where all tasks run on one host.

    With Spark Connect this process is not the driver and cannot serve: tasks pin in the copy that their host has.
    """
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
    server = _Server((bind, port), _Handler)
    threading.Thread(target=server.serve_forever, name="semistream-pins", daemon=True).start()
    return PinService(host, server.server_address[1], server.secret)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[socketserver.BaseRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.secret = secrets.token_bytes(32)
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asks in another way is not answered; the asker says what is wrong."""


class _Handler(socketserver.StreamRequestHandler):
    timeout = _SECONDS

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
        except (errors.SemistreamError, OSError) as error:
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
