"""Wrong arguments of the public functions: the message names the argument, the choices and the remedy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream import MasterStore, join, make_join
from semistream.errors import (
    ArgumentError,
    EmptyMasterError,
    KeyTypeError,
    MemoryBudgetError,
    SchemaError,
    SemistreamError,
    StoreNotFoundError,
)
from semistream.joins import JOINS
from semistream.joins.conditions import Band
from semistream.joins.sweep.join import SweepSettings
from semistream.shedding import Shed
from semistream_lab.workloads.zipf import ZipfWorkload
from tests.advice import advised_bytes
from tests.tables import assert_same_rows, model_join

MASTER = pa.table({"id": [1, 2, 3], "name": ["one", "two", "three"], "price": [1.5, 2.5, None]})
BY_BAND: dict[str, Any] = {"on": None, "condition": Band("product", "id", 1)}
STREAM = pa.record_batch({"product": [2, 9, None], "name": ["a", "b", "c"]})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    return MasterStore.build(MASTER, tmp_path_factory.mktemp("arguments") / "store", key="id")


def asked(store: object, **arguments: Any) -> pa.Table:
    chosen: dict[str, Any] = {"on": {"product": "id"}, "columns": ["price"], "memory": "1MB"} | arguments
    return pa.Table.from_batches(join([STREAM], store, **chosen))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong, kind, words",
    [
        ({"how": "outer"}, ArgumentError, "how='outer'.*'left', 'inner', 'semi', 'anti'"),
        ({"how": None}, ArgumentError, "how=None.*'left'"),
        ({"algorithm": "fast"}, ArgumentError, "algorithm='fast'.*'auto', .*'sweep'"),
        ({"memory": "lots"}, ArgumentError, "memory='lots'.*'256MB'"),
        ({"memory": -1}, ArgumentError, "memory=-1"),
        ({"memory": 1.5}, ArgumentError, "memory=1.5"),
        ({"on": "product"}, ArgumentError, r"on=.*\['id'\].*stream column: master column"),
        ({"on": {"product": "name"}}, ArgumentError, r"on=.*\['id'\]"),
        ({"on": {"nope": "id"}}, ArgumentError, r"no column 'nope'; its columns are \['product', 'name'\]"),
        ({"on": []}, ArgumentError, r"on=\[\].*a list of names"),
        ({"on": {}}, ArgumentError, r"on=\{\}"),
        ({"on": 5}, ArgumentError, "on=5"),
        ({"on": {1: 2}}, ArgumentError, r"on=\{1: 2\}"),
        ({"on": {"name": "id"}}, KeyTypeError, "'name' is string, master key 'id' is int64.*Cast"),
        ({"columns": ["nope"]}, ArgumentError, r"columns=\['nope'\].*\['id', 'name', 'price'\]"),
        ({"columns": None}, SchemaError, "'name' is on both sides; give suffix='_master'.*columns="),
        ({"columns": ["name"], "suffix": ""}, SchemaError, "suffix='' gives the column name 'name' twice"),
        ({"columns": ["price", "price"]}, SchemaError, "'price' twice"),
        ({"defaults": {"price": "dear"}}, ArgumentError, "'dear' does not fit column 'price' of type double"),
        ({"defaults": {"nope": 1}}, ArgumentError, r"'nope'.*\['price'\]"),
        ({"defaults": {"price": 0.0}, "how": "inner"}, ArgumentError, "defaults.*how='inner'.*use how='left'"),
        ({"settings": SweepSettings(), "algorithm": "inl"}, ArgumentError, "settings.*inl"),
        ({"settings": {"wait_seconds": 1}, "algorithm": "sweep"}, ArgumentError, "settings.*SweepSettings"),
        ({"settings": 5, "algorithm": "whole"}, ArgumentError, "settings"),
        ({"wait_seconds": 0}, ArgumentError, "wait_seconds=0 must be a positive number of seconds, or math.inf"),
        ({"wait_seconds": -1.5}, ArgumentError, "wait_seconds=-1.5"),
        ({"wait_seconds": float("nan")}, ArgumentError, "wait_seconds=nan"),
        ({"wait_seconds": "1"}, ArgumentError, "wait_seconds='1'"),
        ({"wait_seconds": True, "algorithm": "hybrid"}, ArgumentError, "wait_seconds=True"),
        ({"threads": 0}, ArgumentError, "threads=0 must be a whole number from 1 on"),
        ({"threads": -2}, ArgumentError, "threads=-2"),
        ({"threads": 1.5}, ArgumentError, "threads=1.5"),
        ({"threads": "2"}, ArgumentError, "threads='2'"),
        ({"threads": True, "algorithm": "mesh"}, ArgumentError, "threads=True"),
        ({"multiple": "last"}, ArgumentError, "multiple='last' is not known; choose one of 'all', 'first', 'error'"),
        ({"multiple": None}, ArgumentError, "multiple=None"),
        ({"multiple": "first", **BY_BAND}, ArgumentError, "multiple='first' goes with on=, not with condition="),
        ({"as_of": "product", **BY_BAND}, ArgumentError, "as_of= goes with on=, not with condition="),
        ({"as_of": 5}, ArgumentError, "as_of=5 must be the name of a column of the stream"),
        ({"as_of": ""}, ArgumentError, "as_of='' must be the name"),
        ({"as_of": "nope"}, ArgumentError, r"as_of='nope': the stream has no such column.*\['product', 'name'\]"),
        ({"as_of": "product"}, ArgumentError, r"valid_from='valid_from': the master has no such column; it has \['id'"),
        ({"as_of": "product", "valid_from": None}, ArgumentError, "valid_from=None must be the name of .* the master"),
        ({"as_of": "product", "valid_from": "id"}, ArgumentError, r"valid_from='id' is part of the master's key \['id"),
        ({"as_of": "product", "valid_from": "price", "valid_to": "price"}, SchemaError,
         "as_of='product' is int64, the master's 'price' is double.*Cast"),
        ({"as_of": "name", "valid_from": "name", "valid_to": "name"}, SchemaError, "as_of='name' is string.*dates"),
        ({"valid_to": "until"}, ArgumentError, "valid_to='until' go with as_of="),
        ({"status": ""}, ArgumentError, "status='' must be the name of a new column"),
        ({"status": True}, ArgumentError, "status=True must be the name of a new column"),
        ({"status": "price"}, SchemaError, "status='price' is the name of another column already"),
        ({"status": "name"}, SchemaError, "status='name' is the name of another column already"),
        ({"status": "s", "how": "inner"}, ArgumentError, "how='inner' does not return both; use how='left'"),
        ({"status": "s", "how": "anti"}, ArgumentError, "status='s'.*how='anti'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_join(store: MasterStore, wrong: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        asked(store, **wrong)


def test_settings_with_auto(store: MasterStore) -> None:
    """Settings of the sweep while the choice falls on another join: used, ignored or refused by name, not a crash."""
    try:
        made = asked(store, settings=SweepSettings(wait_seconds=2.0))
    except ArgumentError as error:
        assert "settings" in str(error)  # noqa: PT017
        return
    assert made.num_rows == 3


@pytest.mark.parametrize(
    "batches",
    [5, None, [1], [{"product": 1}], "text", {"product": [1]}, STREAM, [pa.table({"product": [1]})]],
    ids=["number", "none", "numbers", "rows", "text", "dictionary", "one batch", "tables"],
)
def test_batches(store: MasterStore, batches: Any) -> None:
    with pytest.raises(ArgumentError, match="batches"):
        list(join(batches, store, on={"product": "id"}))


def test_batches_of_another_schema(store: MasterStore) -> None:
    later = pa.record_batch({"product": [1.5], "name": ["x"]})
    with pytest.raises(SchemaError, match=r"batch 2 of the stream(.|\n)*double(.|\n)*int64"):
        list(join([STREAM, STREAM, later], store, on={"product": "id"}, columns=["price"]))


@pytest.mark.parametrize("form", ["batches", "table", "reader", "generator"])
def test_forms_of_a_stream(store: MasterStore, form: str) -> None:
    table = pa.Table.from_batches([STREAM, STREAM])
    stream: Any = {
        "batches": table.to_batches(),
        "table": table,
        "reader": table.to_reader(),
        "generator": (batch for batch in table.to_batches()),
    }[form]
    made = pa.Table.from_batches(join(stream, store, on={"product": "id"}, suffix="_m"))
    assert_same_rows(made, model_join(table, MASTER, {"product": "id"}, suffix="_m"))


def test_an_empty_stream(store: MasterStore) -> None:
    assert list(join([], store, on={"product": "id"})) == []
    assert list(join(pa.table({"product": pa.array([], pa.int64())}), store, on={"product": "id"})) == []
    assert list(join([STREAM.slice(0, 0)], store, on={"product": "id"}, columns=["price"])) == []


@pytest.mark.parametrize("wrong", [5, None, MASTER], ids=["number", "none", "table"])
def test_store(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"(?s)store=.* is not a store; give a MasterStore or the path"):
        asked(wrong)


def test_store_by_path(store: MasterStore, tmp_path: Path) -> None:
    assert asked(store.path).num_rows == asked(str(store.path)).num_rows == 3
    with pytest.raises(StoreNotFoundError, match=r"nowhere.*MasterStore\.build"):
        asked(tmp_path / "nowhere")


@pytest.mark.parametrize("name", JOINS)
def test_an_empty_master_must_be_meant(tmp_path: Path, name: str) -> None:
    empty = MasterStore.build(MASTER.slice(0, 0), tmp_path / "store", key="id")
    with pytest.raises(EmptyMasterError, match=r"store \(version 1\) is empty.*allow_empty=True"):
        asked(empty, algorithm=name)
    for how in ("left", "anti"):
        assert asked(empty, algorithm=name, allow_empty=True, how=how).num_rows == 3
    filled = MasterStore.build(MASTER, tmp_path / "filled", key="id").delete([1, 2, 3])
    with pytest.raises(EmptyMasterError, match="version 2"):
        asked(filled, algorithm=name)


@pytest.mark.parametrize("name", [*JOINS, "auto"])
def test_a_budget_too_small_says_what_is_enough(tmp_path: Path, name: str) -> None:
    keys = np.arange(20_000)
    big = MasterStore.build(pa.table({"id": keys, "price": keys / 2}), tmp_path / "store", key="id")
    with pytest.raises(MemoryBudgetError, match="bytes") as raised:
        asked(big, algorithm=name, memory=100)
    enough = max(int(number.replace(",", "")) for number in re.findall(r"[\d,]+(?= bytes)", str(raised.value)))
    assert asked(big, algorithm=name, memory=enough).num_rows == 3


def test_what_is_enough_leaves_room_for_shedding(store: MasterStore, tmp_path: Path) -> None:
    shed = Shed("sample_w", max_rows_per_second=100, to=tmp_path / "shed")
    options: dict[str, Any] = {"on": {"product": "id"}, "columns": ["price"], "shed": shed}
    with pytest.raises(MemoryBudgetError, match="memory=1,000 bytes") as raised:
        make_join(STREAM.schema, store, memory=1000, **options)
    make_join(STREAM.schema, store, memory=advised_bytes(raised.value), **options)


def test_memory_as_a_share_of_the_master(store: MasterStore) -> None:
    made = make_join(STREAM.schema, store, on={"product": "id"}, memory="5000%", columns=["price"])
    assert made.budget.total == 50 * store.bytes


def test_suffix_and_defaults(store: MasterStore) -> None:
    made = asked(store, columns=["name", "price", "id"], suffix="_m", defaults={"name_m": "?", "price": -1})
    assert made.schema.names == ["product", "name", "name_m", "price", "id"]
    assert made.sort_by("name").select(["name_m", "price", "id"]).to_pylist() == [
        {"name_m": "two", "price": 2.5, "id": 2},
        {"name_m": "?", "price": -1.0, "id": None},
        {"name_m": "?", "price": -1.0, "id": None},
    ]


def test_a_column_named_like_the_key_on_both_sides(store: MasterStore) -> None:
    stream = pa.record_batch({"id": [2, 5]})
    made = pa.Table.from_batches(join([stream], store, on="id"))
    assert made.sort_by("id").to_pylist() == [
        {"id": 2, "name": "two", "price": 2.5},
        {"id": 5, "name": None, "price": None},
    ]
    with pytest.raises(SchemaError, match="'id' is on both sides"):
        join([stream], store, on="id", columns=["id"])


@pytest.mark.parametrize(
    "wrong",
    [{"rows": 0}, {"rows": -5}, {"rows": 5, "skew": -0.1}, {"rows": 5, "absent": 1.5}, {"rows": 5, "absent": -0.1}],
    ids=str,
)
def test_workload(wrong: dict[str, Any]) -> None:
    name, value = list(wrong.items())[-1]
    with pytest.raises(ArgumentError, match=f"{name}={value}"):
        ZipfWorkload(**wrong)


# -- the package -------------------------------------------------------------------------------------------------------


def test_public_names() -> None:
    assert set(semistream.__all__) <= set(dir(semistream))
    assert all(getattr(semistream, name) is not None for name in semistream.__all__)
    with pytest.raises(AttributeError, match="'semistream' has no attribute 'nope'"):
        semistream.nope  # noqa: B018


def test_every_error_has_one_root() -> None:
    from semistream import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 8
    assert all(issubclass(kind, SemistreamError) for kind in kinds)


def test_import_is_light() -> None:
    """So it is quick, which no test can measure on a busy machine: of all packages only those two are loaded."""
    code = """if True:
        import sys
        before = set(sys.modules)
        import semistream
        loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names
        print(*sorted(name for name in loaded if not name.startswith("_")))"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(said) <= {"numpy", "pyarrow", "semistream"}


def test_joining_does_not_load_spark(tmp_path: Path) -> None:
    code = f"""if True:
        import sys, pyarrow as pa, semistream
        store = semistream.MasterStore.build(pa.table({{"k": [1], "v": [2]}}), {str(tmp_path / "store")!r}, key="k")
        print(sum(b.num_rows for b in semistream.join([pa.record_batch({{"k": [1]}})], store, on="k")))
        print("pyspark" in sys.modules, "py4j" in sys.modules)"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "1\nFalse False\n"
