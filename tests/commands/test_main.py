"""The command line: each command does what it says; what goes wrong is one message and an exit code."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream import MasterStore
from semistream.commands import main as cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the command line in this process: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["semistream", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return int(ended.value.code or 0), said.out, said.err

    return call


@pytest.fixture
def products(tmp_path: Path) -> Path:
    rows = 2000
    table = pa.table(
        {
            "id": pa.array([i - 5 for i in range(rows)]),
            "name": pa.array([f"[red]{i}" for i in range(rows)]),
            "price": pa.array([Decimal(i) / 100 for i in range(rows)], pa.decimal128(9, 2)),
        }
    )
    pq.write_table(table, tmp_path / "products.parquet")
    return tmp_path / "products.parquet"


@pytest.fixture
def store(products: Path, tmp_path: Path) -> Path:
    MasterStore.build(products, tmp_path / "store", key="id")
    return tmp_path / "store"


def test_help_is_light() -> None:
    code = (
        "import sys, semistream.commands.main; "
        "print([m for m in ('numba', 'numpy', 'pyarrow', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "command",
    [
        "build",
        "inspect",
        "verify",
        "get",
        "upsert",
        "delete",
        "compact",
        "vacuum",
        "apply",
        "diff",
        "reconcile",
        "doctor",
        "demo",
        "bench",
    ],
)
def test_every_command_has_help(run: Run, command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"semistream {command}" in out


def test_help_and_version(run: Run) -> None:
    assert "Examples" in run("--help")[1]
    assert run("--version")[1].startswith("semistream 0.")


def test_build_inspect_verify(run: Run, products: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    code, out, _ = run(
        "build", products, path, "--key", "id", "--column", "price", "--memory", "1MB", "--page-bytes", 8192
    )
    assert code == 0
    assert "version 1, 2,000 rows" in out
    assert out.endswith("; 2,000 keys, one row per key\n")
    facts = json.loads(run("inspect", path, "--json")[1])
    assert (facts["rows"], facts["key"], list(facts["columns"]), facts["page_bytes"]) == (
        2000,
        ["id"],
        ["id", "price"],
        8192,
    )
    assert facts["keys"] == {
        "distinct_at_most": 2000, "exact": True, "rows_a_key": 1.0, "largest_group": 1, "null_keys_left_out": 0,
    }  # fmt: skip
    shown = run("inspect", path)[1]
    assert "2,000" in shown
    assert "decimal128(9, 2)" in shown
    assert "O_DIRECT" in shown
    code, out, _ = run("verify", path)
    assert (code, "pages are sound" in out) == (0, True)


def test_several_keys_groups_and_nulls(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text('shop,item,price\n1,"a, b",2.5\n1,"a, b",3.5\n2,c,1\n,c,9\n')
    path = tmp_path / "s"
    code, out, _ = run("build", tmp_path / "sales.csv", path, "--key", "shop", "--key", "item")
    assert code == 0
    assert "version 1, 3 rows on 1 page, " in out
    assert out.endswith("; 2 keys, up to 2 rows per key; 1 row with a NULL key dropped\n")
    assert "1 page is sound" in run("verify", path)[1]
    code, _, err = run("build", tmp_path / "sales.csv", tmp_path / "t", "--key", "shop", "--null-keys", "refuse")
    assert (code, "1 of the first 4 rows have a NULL in their key (shop)" in err) == (2, True)
    keys = json.loads(run("inspect", path, "--json")[1])["keys"]
    assert (keys["distinct_at_most"], keys["rows_a_key"], keys["largest_group"], keys["null_keys_left_out"]) == (
        2,
        1.5,
        2,
        1,
    )
    lines = run("get", path, '1,"a, b"', "2,c", "--format", "json")[1].splitlines()
    assert sorted(json.loads(line)["price"] for line in lines) == [1.0, 2.5, 3.5]
    code, _, err = run("get", path, "1")
    assert (code, "shop,item" in err) == (2, True)


def test_get(run: Run, store: Path) -> None:
    code, out, _ = run("get", store, "-5", 7)
    assert code == 0
    assert "[red]0" in out  # shown as it is, not taken for a colour
    assert "0.12" in out
    lines = run("get", store, "-5", "7", "--format", "json")[1].splitlines()
    assert json.loads(lines[0]) == {"id": -5, "name": "[red]0", "price": "0.00"}
    code, out, err = run("get", store, 99999)
    assert (code, out, err) == (1, "", "no row has such a key\n")


@pytest.mark.parametrize(
    "kind, value, text",
    [
        (pa.date32(), dt.date(2024, 2, 29), "2024-02-29"),
        (pa.timestamp("us", "UTC"), dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), "2024-02-29T12:00:00Z"),
        (pa.decimal128(9, 2), Decimal("-1.50"), "-1.5"),
        (pa.string(), "a,b", "a,b"),
        (pa.binary(), b"ab", "ab"),
        (pa.bool_(), True, "true"),
        (pa.float64(), 0.5, "0.5"),
        (pa.int16(), -7, "-7"),
    ],
    ids=str,
)
def test_keys_of_every_type(run: Run, tmp_path: Path, kind: pa.DataType, value: object, text: str) -> None:
    table = pa.table({"k": pa.array([value], kind), "v": [42]})
    MasterStore.build(table, tmp_path / "s", key="k")
    assert json.loads(run("get", tmp_path / "s", text, "--format", "json")[1])["v"] == 42


def test_changes(run: Run, store: Path, tmp_path: Path) -> None:
    changes = pa.table(
        {"id": [1, 9000], "name": ["one", "new"], "price": pa.array([Decimal(1), None], pa.decimal128(9, 2))}
    )
    pq.write_table(changes, tmp_path / "changes.parquet")
    assert "version 2, 2,001 rows" in run("upsert", store, tmp_path / "changes.parquet")[1]
    assert json.loads(run("get", store, 1, "--format", "json")[1])["name"] == "one"
    assert "version 3, 1,999 rows" in run("delete", store, "-5", 9000)[1]
    assert run("get", store, 9000)[0] == 1
    assert json.loads(run("get", store, 9000, "--version", 2, "--format", "json")[1])["price"] is None
    assert json.loads(run("inspect", store, "--json")[1])["keys"]["exact"] is False
    assert "version 4, 1,999 rows" in run("compact", store)[1]
    assert [v["change"] for v in json.loads(run("inspect", store, "--json")[1])["versions"]] == [
        "build", "upsert", "delete", "compact",
    ]  # fmt: skip
    assert "removed version-000001.json" in run("vacuum", store, "--keep", 1)[1]
    assert run("verify", store)[0] == 0


def test_errors_are_one_message(run: Run, store: Path, products: Path, tmp_path: Path) -> None:
    for arguments, expected in (
        (("inspect", tmp_path / "none"), "there is no semistream store"),
        (("inspect", store, "--version", 9), "has no version 9"),
        (("get", store, "x"), "'x' is no int64"),
        (("get", store, 1, "--format", "xml"), "'table', 'json'"),
        (("build", products, store, "--key", "id"), "holds a store already"),
        (("build", products, tmp_path / "n", "--key", "nope"), "no column 'nope'"),
        (("build", tmp_path / "nope.csv", tmp_path / "n", "--key", "id"), "does not exist"),
        (("build", products, tmp_path / "n", "--key", "id", "--memory", "much"), "is not a size"),
        (
            ("build", products, tmp_path / "n", "--key", "id", "--memory", "9%"),
            "--memory '9%' is a share, but of nothing",
        ),
        (("compact", store, "--memory", "much"), "--memory 'much' is not a size"),
        (("vacuum", store, "--keep", 0), "--keep 0: at least one"),
        (("bench", "core", "--arms", "nope"), "'sweep'"),
        (("bench", "core", "--batch-rows", "many"), "separated by commas"),
        (("bench", "spark", "--columns", "two"), "choose 'narrow', 'three', 'text' or 'all'"),
        (("bench", "report", tmp_path), "no results.jsonl"),
        (("calibrate", "--joins", "swep"), "--joins 'swep'"),
    ):
        code, out, err = run(*arguments)
        assert code == (1 if "store" in expected or "version" in expected else 2), arguments
        assert err.splitlines()[-1].startswith("semistream: "), arguments
        assert expected in err, arguments
        assert out == "", arguments


def test_messages_speak_of_flags(run: Run, store: Path, products: Path, tmp_path: Path) -> None:
    said = run("build", products, store, "--key", "id")[2]
    assert "give --replace to publish" in said
    assert run("generate", "zipf", "--out", tmp_path / "z", "--rows", 9, "--stream-rows", 9)[0] == 0
    said = run("generate", "zipf", "--out", tmp_path / "z", "--rows", 9, "--stream-rows", 9)[2]
    assert "or --replace" in said
    assert "replace=" not in said
    said = run("generate", "zipf", "--out", tmp_path / "y", "--rows", 9, "--stream-rows", -1)[2]
    assert "--stream-rows -1 must be" in said
    said = run("apply", store, products, "--format", "debezium")[2]
    assert "give --format 'plain'" in said


def test_every_error_has_an_exit_code() -> None:
    from semistream import errors

    found = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in found if issubclass(kind, errors.SemistreamError)]
    usage = {kind.__name__ for kind in kinds if kind.exit_code == 2}
    assert usage == {"UsageError", "ArgumentError", "SchemaError", "KeyTypeError"} | {
        "StepError",
        "PipelineFileError",
    }
    assert {kind.exit_code for kind in kinds} == {1, 2}


def test_json(run: Run, store: Path) -> None:
    """One word for it on all commands; the older --json still works."""
    shown = run("inspect", store, "--format", "json")
    assert shown[0] == 0
    assert json.loads(shown[1])["rows"] == 2000
    assert run("inspect", store, "--json") == shown
    assert "--json" not in run("inspect", "--help")[1]
    assert run("inspect", store, "--format", "xml")[0] == 2


def test_one_and_many(run: Run, tmp_path: Path) -> None:
    MasterStore.build(pa.table({"id": [1]}), tmp_path / "one", key="id")
    assert "1 page is sound" in run("verify", tmp_path / "one")[1]
    pq.write_table(pa.table({"id": [2]}), tmp_path / "more.parquet")
    assert "2 rows on 2 pages" in run("upsert", tmp_path / "one", tmp_path / "more.parquet")[1]
    assert "1 row on 1 page," in run("build", tmp_path / "more.parquet", tmp_path / "other", "--key", "id")[1]


def test_damage_is_found(run: Run, store: Path) -> None:
    pages = next(store.glob("segment-*.pages"))
    content = bytearray(pages.read_bytes())
    content[5000] ^= 1
    pages.write_bytes(content)
    code, _, err = run("verify", store)
    assert code == 1
    assert pages.name in err


def test_doctor(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("doctor", "--directory", tmp_path)
    assert code == 0
    for name in ("Python", "machine", "pyarrow", "pyspark", "kernels", "Java", "shared memory", "O_DIRECT"):
        assert name in out
    code, out, _ = run("doctor", "--directory", tmp_path / "none")
    assert (code, "cannot be written" in out) == (1, True)


def test_demo_is_called(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import semistream_lab.demo

    seen: list[object] = []

    def stand_in(directory: Path | None, rows: int, quick: bool) -> int:
        seen.extend([directory, rows, quick])
        return 3

    monkeypatch.setattr(semistream_lab.demo, "run", stand_in)
    assert run("demo", "--directory", tmp_path, "--products", 5, "--quick")[0] == 3
    assert seen == [tmp_path, 5, True]


@pytest.mark.parametrize("option", [("--memory", "1GB"), ("--to", "sales"), ("--latest",)])
def test_reconcile_leaves_options_to_the_pipeline(option: tuple[str, ...], run: Run) -> None:
    code, _, said = run("reconcile", "sales.toml", *option)
    assert code == 2
    assert "sales.toml says where everything is; leave the options out" in said
