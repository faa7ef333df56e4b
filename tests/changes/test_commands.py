"""`semistream apply` and `semistream diff`, as they are called."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream import MasterStore
from semistream.dimensions import Dimension
from tests.commands.test_main import Run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    MasterStore.build(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}), tmp_path / "store", key="id")
    return tmp_path / "store"


def names(store: Path) -> dict[int, str]:
    batches = MasterStore.open(store).scan()
    return {row["id"]: row["name"] for batch in batches for row in batch.to_pylist()}


def test_apply(run: Run, store: Path, tmp_path: Path) -> None:
    lines = [
        {"op": "c", "after": {"id": 4, "name": "d"}},
        {"op": "u", "after": {"id": 1, "name": "A"}},
        {"op": "d", "before": {"id": 2}},
        {"op": "u", "after": {"id": "x"}},
    ]
    path, bad = tmp_path / "changes.jsonl", tmp_path / "bad.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, _, err = run("apply", store, path)
    assert code == 1
    assert "1 of 4 records are bad, more than --max-bad-rate 0.0 allows; nothing was applied" in err
    code, out, _ = run("apply", store, path, "--rejects", bad, "--token", "cdc:3")
    assert (code, out) == (0, f"{store}: 1 inserted, 1 updated, 1 deleted, 1 rejected; version 2\n")
    assert names(store) == {1: "A", 3: "c", 4: "d"}
    told = [json.loads(line) for line in bad.read_text().splitlines()]
    assert [(one["source"], one["line"]) for one in told] == [(str(path), 4)]
    code, out, _ = run("apply", store, path, "--rejects", bad, "--token", "cdc:3")
    assert (code, out) == (0, f"{store}: cdc:3 was applied before; nothing to do, version 2\n")
    assert len(bad.read_text().splitlines()) == 1
    code, _, err = run("apply", store, path, "--rejects", bad, "--max-bad-rate", "0.1")
    assert (code, "more than --max-bad-rate 0.1" in err) == (1, True)
    code, _, err = run("apply", store, path, "--token", "cdc")
    assert (code, "must be APP:BATCH" in err) == (2, True)
    code, _, err = run("apply", store, path, "--format", "avro")
    assert (code, "--format 'avro' is not known" in err) == (2, True)


def test_apply_plain_rows(run: Run, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "changes.csv"
    path.write_text("what,id,name,at\nupdate,1,late,2\nupdate,1,early,1\n")
    code, out, _ = run("apply", store, path, "--format", "plain", "--op", "what", "--order", "at")
    assert (code, "0 inserted, 1 updated, 0 deleted" in out) == (0, True)
    assert names(store)[1] == "late"


def test_apply_to_a_dimension(run: Run, tmp_path: Path) -> None:
    made = Dimension.create(
        tmp_path / "dimension",
        key=pa.schema([("id", pa.int64())]),
        attributes=pa.schema([("name", pa.string())]),
        surrogate="sk",
        history=True,
        time=pa.date32(),
    )
    path = tmp_path / "changes.csv"
    path.write_text("_op,id,name,since\nI,1,one,2024-01-01\nU,1,uno,2024-02-01\n")
    code, out, _ = run("apply", made.path, path, "--format", "plain", "--effective", "since")
    assert (code, out) == (
        0,
        f"{made.path}: 2 rows created, 0 completed, 0 changed, 0 closed, 0 rejected; version 2\n",
    )
    assert sorted(map(str, made.rows()[0]["valid_to"].to_pylist())) == ["2024-02-01", "None"]


def test_apply_from_several_systems(run: Run, tmp_path: Path) -> None:
    made = Dimension.create(
        tmp_path / "dimension",
        key=pa.schema([("id", pa.int64())]),
        attributes=pa.schema([("name", pa.string())]),
        surrogate="sk",
        source="system",
    )
    web, shop, odd = tmp_path / "web.jsonl", tmp_path / "shop.csv", tmp_path / "odd.jsonl"
    web.write_text(json.dumps({"op": "c", "after": {"id": 1, "name": "from the web"}}) + "\n")
    shop.write_text("_op,id,name\nI,1,from the shop\n")
    odd.write_text(json.dumps({"_op": "I", "id": 1, "name": "odd"}) + "\n")
    assert run("apply", made.path, web, "--set", "system=web")[0] == 0
    assert run("apply", made.path, shop, "--format", "plain", "--set", "system=shop")[0] == 0
    assert run("apply", made.path, odd, "--format", "plain", "--set", "system=odd")[0] == 0
    found = made.rows()[0].select(["system", "id", "sk"]).sort_by("sk").to_pylist()
    assert [tuple(row.values()) for row in found] == [("web", 1, 1), ("shop", 1, 2), ("odd", 1, 3)]


def test_diff(run: Run, store: Path, tmp_path: Path) -> None:
    first, second, out_file = tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "changes.parquet"
    pq.write_table(pa.table({"id": [1, 5], "name": ["a", "e"]}), first)
    pq.write_table(pa.table({"id": [2], "name": ["B"]}), second)
    code, out, _ = run("diff", store, first, second, "--out", out_file)
    assert (code, out) == (0, f"{store}: 1 inserted, 1 updated, 1 deleted since version 1\n")
    code, out, _ = run("apply", store, out_file, "--format", "plain")
    assert (code, "1 inserted, 1 updated, 1 deleted" in out) == (0, True)
    assert names(store) == {1: "a", 2: "B", 5: "e"}
    code, out, _ = run("diff", store, first, second, "--apply", "--out", out_file)
    assert (code, out) == (0, f"{store}: 0 inserted, 0 updated, 0 deleted; version 2\n")
    assert pq.read_table(out_file).num_rows == 0
    code, out, _ = run("diff", store, first, "--apply")
    assert (code, names(store)) == (0, {1: "a", 5: "e"})
