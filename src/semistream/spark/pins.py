"""Which version of the master a micro-batch reads: pinned once, found again on replay.

The first one who asks for (query id, batch id) writes the pin by an exclusive link, the others read it; so do all
tasks of a replay, also after a restart, whatever was published in between. On one host the tasks ask the files
themselves; on a cluster, where every host may have a copy of the store, they ask the driver (`pin_service`).
A pin names the content (`StoreVersion`), and a task that finds other content refuses it.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from semistream.durable import create_once, read_once
from semistream.errors import ArgumentError, StoreNotFoundError
from semistream.stores.paged.manifest import Manifest, StoreVersion

KEPT_BATCHES = 100  # as many as Spark keeps of its own log by default
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(second|minute|hour|day)s?\s*")
_IDENTITY = ("store_id", "version", "digest")
_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}


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


def pinned_version(root: Path, query: str, batch: int, refresh: str, planned: StoreVersion) -> StoreVersion:
    """The version for this batch; decided by the first one who asks.

    ``planned`` is the version that was there when the query was written; "never" keeps it from the first batch on.
    """
    directory = root / "pins" / "".join(c if c.isalnum() or c == "-" else "_" for c in query)
    path = directory / f"{batch:09d}.json"
    found = _read(path)
    if found is None:
        if not Manifest.versions(root):
            raise StoreNotFoundError(f"there is no semistream store at {root} any more; restore it and start again")
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        pin = _choose(root, directory, batch, refresh, planned)
        create_once(path, {**pin, "query": query, "batch": batch})
        found = _read(path)
        assert found is not None
        for old in directory.glob("[0-9]*.json"):
            if int(old.stem) < batch - KEPT_BATCHES:
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
        return {name: last[name] for name in (*_IDENTITY, "since") if name in last}
    chosen = planned if seconds is None else Manifest.load(root).identity
    return {"store_id": chosen.store_id, "version": chosen.number, "digest": chosen.digest, "since": now}


def _read(path: Path) -> dict[str, Any] | None:
    return read_once(path, ("version", "since"), "let the batch choose the newest version")
