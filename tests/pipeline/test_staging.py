"""What the tasks of a batch do, without Spark: every row into one file and counted, nothing left of a failure."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.pipeline.routes import FACT, KEYS, UNRESOLVED
from semistream.pipeline.staging import Route, Stage, Staged, plain

ROUTES = (FACT, "unmatched", "held:products", "quarantine", "duplicate", "filtered", "dropped")
SCHEMA = pa.schema(
    {"id": pa.int64(), "_ss_route": pa.string(), "_ss_reason": pa.string(), "_ss_status0": pa.bool_(), "n": pa.int64()}
)


def stage(directory: Path, *, identity: str | None = None, unresolved: bool = False, keys: bool = False) -> Stage:
    def route(name: str, columns: tuple[str, ...], **constants: Any) -> Route:
        kinds = {"id": pa.int64(), "_ss_reason": pa.string(), "batch": pa.int64(), "_ss_status0": pa.bool_()}
        schema = pa.schema([pa.field(column, kinds[column]) for column in columns])
        return Route(name, columns, schema, str(directory / plain(name)), constants)

    routes = [
        route(FACT, ("id",)),
        route("unmatched", ("id", "_ss_reason", "batch"), batch=7),
        route("held:products", ("id",)),
        route("quarantine", ("id", "_ss_reason")),
    ]
    if unresolved:
        routes.append(route(UNRESOLVED, ("id", "_ss_status0")))
    if keys:
        routes.append(route(KEYS, ("id",)))
    return Stage(
        prefix="sales-b000000007",
        routes=tuple(routes),
        statuses={"products": "_ss_status0"},
        unresolved=("products",) if unresolved else (),
        identity=identity,
    )


def batches(rows: list[dict[str, Any]], size: int = 3) -> Iterator[pa.RecordBatch]:
    yield from pa.Table.from_pylist(rows, SCHEMA).to_batches(max_chunksize=size)


def row(number: int, route: str | None = None, status: bool | None = True, n: int | None = None) -> dict[str, Any]:
    reason = None if route is None else f"because {number}"
    return {
        "id": number,
        "_ss_route": None if route == FACT else route,
        "_ss_reason": reason,
        "_ss_status0": status,
        "n": number if n is None else n,
    }


def written(made: Stage, rows: list[dict[str, Any]]) -> Staged:
    lines = [line for batch in made.function(SCHEMA.names)(batches(rows)) for line in batch.to_pylist()]
    return Staged.of(lines, made.statuses)


def ids(staged: Staged, route: str) -> list[int]:
    files = staged.files.get(route, [])
    for file in files:
        assert Path(file.path).stat().st_size == file.bytes
        assert pq.read_metadata(file.path).num_rows == file.rows
    return sorted(number for file in files for number in pq.read_table(file.path).column("id").to_pylist())


@given(st.lists(st.sampled_from(ROUTES), max_size=30))
@settings(max_examples=40, deadline=None)
def test_every_row_goes_one_way(tmp_path_factory: pytest.TempPathFactory, routes: list[str]) -> None:
    staged = written(stage(tmp_path_factory.mktemp("t")), [row(n, route) for n, route in enumerate(routes)])
    assert staged.counts == {route: routes.count(route) for route in set(routes)}
    for route in ROUTES[:4]:
        assert ids(staged, route) == [n for n, one in enumerate(routes) if one == route]
    assert set(staged.files) <= set(ROUTES[:4])


def test_constants_and_reasons(tmp_path: Path) -> None:
    staged = written(stage(tmp_path), [row(1, "unmatched"), row(2, "unmatched", status=False), row(3)])
    [file] = staged.files["unmatched"]
    assert pq.read_table(file.path).to_pylist() == [
        {"id": 1, "_ss_reason": "because 1", "batch": 7},
        {"id": 2, "_ss_reason": "because 2", "batch": 7},
    ]
    assert staged.samples == {"unmatched": ["because 1", "because 2"]}
    assert staged.lookups == {"products": {"matched": 2, "unmatched": 1}}


def test_rows_whose_members_are_missing_are_kept_apart(tmp_path: Path) -> None:
    rows = [row(1), row(2, status=False), row(3, "unmatched", status=False), row(4, "filtered", status=None)]
    staged = written(stage(tmp_path, unresolved=True, keys=True), rows)
    assert (ids(staged, FACT), ids(staged, UNRESOLVED), ids(staged, KEYS)) == ([1], [2], [1, 2])
    assert staged.counts == {FACT: 2, "unmatched": 1, "filtered": 1}


def test_counters_of_lookups_come_back_once(tmp_path: Path) -> None:
    """A row with counters may have become several, in one task or in two."""
    made = replace(stage(tmp_path), carriers=("_ss_counters0", "_ss_counters3"))
    schema = SCHEMA.append(pa.field("_ss_counters0", pa.string()))
    one, other = (json.dumps({"task": n, "lookups": {"_ss_status0": {"hits": 2, "misses": n}}}) for n in (1, 2))
    lines = []
    for reports in ([None, one, one], [one, None, other]):
        rows = [{**row(n), "_ss_counters0": report} for n, report in enumerate(reports)]
        batch = pa.RecordBatch.from_pylist(rows, schema)
        lines += [line for found in made.function(schema.names)(iter([batch])) for line in found.to_pylist()]
    counted = Staged.of(lines, made.statuses).lookups["products"]
    assert {name: counted[name] for name in ("matched", "hits", "misses")} == {"matched": 6, "hits": 4, "misses": 3}
    assert "_ss_counters0" in made.columns


def test_copies_of_a_row_count_once(tmp_path: Path) -> None:
    """Row 1 has three matches, one of which is filtered; row 2 two, both filtered; row 3 is held."""
    rows = [row(10, n=1), row(11, n=1), row(12, "filtered", n=1)]
    rows += [row(20, "filtered", n=2), row(21, "filtered", n=2), row(30, "held:products", n=3), row(31, FACT, n=4)]
    staged = written(stage(tmp_path, identity="n"), rows)
    assert staged.counts == {FACT: 2, "filtered": 1, "held:products": 1}
    assert ids(staged, FACT) == [10, 11, 31]


def test_a_row_that_must_match_fails_whatever_its_copies_do(tmp_path: Path) -> None:
    staged = written(stage(tmp_path, identity="n"), [row(1, n=1), row(2, "failed", n=1)])
    assert staged.counts == {"failed": 1, FACT: 0}


def test_nothing_is_left_of_a_task_that_fails(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches([row(n, ROUTES[n % 4]) for n in range(12)])
        raise ConnectionError("the stream broke off")

    with pytest.raises(ConnectionError):
        list(stage(tmp_path).function(SCHEMA.names)(broken()))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("limit", [0, 100, 600])
def test_a_full_disk(tmp_path: Path, limit: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    rows = [row(n * 7919, ROUTES[n % 4]) for n in range(3000)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            written(stage(tmp_path), rows)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert sum(written(stage(tmp_path), rows).counts.values()) == 3000


def test_tries_of_one_task_do_not_meet(tmp_path: Path) -> None:
    """A task that is tried again, or a slow twin, writes files of other names; only one attempt's lines come back."""
    first, second = (written(stage(tmp_path), [row(1), row(2)]) for _ in range(2))
    assert first.files[FACT][0].path != second.files[FACT][0].path
    assert ids(first, FACT) == ids(second, FACT) == [1, 2]


@pytest.mark.parametrize("name", ["../up", "a/b", "Zoë's sales", "x;--", "a b%20c", "held:näh"])
def test_names_of_files_are_plain(name: str) -> None:
    found = plain(name)
    assert found.isascii()
    assert not set(found) & set("/;%: '")
    assert json.loads(json.dumps(found)) == found
