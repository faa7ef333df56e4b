"""The driver's answers to tasks on other hosts: one version for a batch, and nothing for those without the secret."""

from __future__ import annotations

import pickle
import socket
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from semistream import MasterStore
from semistream.errors import CorruptStoreError, SemistreamError, StoreNotFoundError
from semistream.spark.pins import PinService, serve
from semistream.stores.paged.manifest import StoreVersion
from tests.spark.streams import build, master_table


@pytest.fixture(scope="module")
def service() -> PinService:
    return serve("127.0.0.1", "127.0.0.1")


@pytest.fixture
def store(tmp_path: Path) -> MasterStore:
    return build(tmp_path / "s")


def asked(service: PinService, store: MasterStore, batch: int = 0, refresh: str = "every_batch") -> StoreVersion:
    shipped: PinService = pickle.loads(pickle.dumps(service))
    return shipped.ask(str(store.path), "q", batch, refresh, store.manifest.identity)


def test_one_version_for_all(service: PinService, store: MasterStore) -> None:
    answers: list[StoreVersion] = []
    start = threading.Barrier(9)

    def task() -> None:
        start.wait()
        answers.append(asked(service, store))

    threads = [threading.Thread(target=task) for _ in range(8)]
    for thread in threads:
        thread.start()
    start.wait()
    newer = store.upsert(master_table(3, 0.5))
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert len(set(answers)) == 1
    assert asked(service, store, 1) == newer.manifest.identity
    assert asked(service, store, 0) == answers[0]  # a replay
    assert asked(serve("127.0.0.1", "127.0.0.1"), store, 0) == answers[0]  # and after a restart of the driver


def test_errors_come_as_they_are(service: PinService, store: MasterStore) -> None:
    asked(service, store)
    [pin] = (store.path / "pins").rglob("*.json")
    pin.write_text("{")
    with pytest.raises(CorruptStoreError, match=f"{pin} is damaged"):
        asked(service, store)
    (store.path / "version-000001.json").unlink()
    with pytest.raises(StoreNotFoundError, match="no semistream store"):
        asked(service, store, 1)


def test_without_the_secret(service: PinService, store: MasterStore) -> None:
    with pytest.raises(SemistreamError, match="not the driver of this query"):
        asked(replace(service, secret=b"guessed"), store)
    assert not (store.path / "pins").exists()
    assert "secret" not in repr(service)


@pytest.mark.parametrize("noise", [b"", b"\n", b"GET / HTTP/1.1\r\n\r\n", b"[1, 2]\n", b'["{}", 5]\n', b"x" * 200_000])
def test_noise(service: PinService, store: MasterStore, noise: bytes) -> None:
    address = service.host, service.port
    with suppress(OSError), socket.create_connection(address, 30) as connection:
        connection.sendall(noise)  # it may hang up before it has read all, and then there is nothing to shut down
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert asked(service, store) == store.manifest.identity


def test_nobody_answers(store: MasterStore) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        gone = PinService("127.0.0.1", taken.getsockname()[1], b"x")
        with pytest.raises(SemistreamError, match=r"Executors must reach it there.*spark\.semistream\.port"):
            asked(gone, store)
