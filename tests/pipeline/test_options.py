"""An option of a lookup is declared once: in Python and in a file, a pipeline takes what `join` and `enrich` take."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semistream import MasterStore
from semistream.dimensions.dimension import Dimension
from semistream.errors import ArgumentError
from semistream.lookup.spec import LookupSpec
from semistream.pipeline import Pipeline, assign_keys, load, lookup, source
from semistream.pipeline.steps import STEPS
from semistream.pipeline.steps.assign_keys import AssignKeysSpec
from semistream.pipeline.steps.lookup import PipelineLookupSpec
from semistream.spark.spec import EnrichSpec
from semistream.warehouse import DeltaWarehouse

# Options of a lookup that a pipeline decides itself, for reasons that stand beside them in `StepSpec`.
DECIDED = ("how", "suffix", "status", "allow_empty", "hot_keys")
# Of a dimension these are known too.
KNOWN = (*DECIDED, "defaults", "valid_from", "valid_to", "multiple")

OPTIONS: dict[str, Any] = {
    "on": {"product": "id"},
    "columns": ["price"],
    "memory": "8MB",
    "algorithm": "sweep",
    "defaults": {"price": 0.5},
    "as_of": "sold",
    "valid_from": "since",
    "valid_to": "until",
    "multiple": "first",
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    at = pa.array([None], pa.timestamp("us", tz="UTC"))
    table = pa.table({"id": ["a"], "price": [1.5], "since": at, "until": at})
    return MasterStore.build(table, tmp_path / "products", key="id").path


def test_every_option_is_known_to_this_test() -> None:
    """A new one is tried here too, or it is among those that a pipeline decides."""
    assert {item.name for item in fields(LookupSpec)} == {*OPTIONS, *DECIDED}


def test_every_option_in_python_and_in_a_file(store: Path, tmp_path: Path) -> None:
    (tmp_path / "incoming").mkdir()
    settings = "\n".join(f"{name} = {in_toml(value)}" for name, value in OPTIONS.items())
    (tmp_path / "sales.toml").write_text(
        f"""
state = "state"
memory = "64MB"
source = {{ format = "json", path = "incoming", schema = {{ product = "string", sold = "timestamp" }} }}
sink = {{ delta = "warehouse", table = "sales" }}
[[step]]
lookup = "products"
{settings}
""",
        encoding="utf-8",
    )
    declared = lookup(store, **OPTIONS)
    assert load(tmp_path / "sales.toml").steps == [declared]
    asked = declared.copy_to(EnrichSpec, memory="8MB")  # as tasks get it
    assert {name: getattr(asked, name) for name in OPTIONS} == OPTIONS | {"columns": ("price",)}


def in_toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {in_toml(item)}" for name, item in value.items()) + " }"
    return str(value) if isinstance(value, list) else repr(value)


@pytest.mark.parametrize(
    "function, spec, decided", [(lookup, PipelineLookupSpec, DECIDED), (assign_keys, AssignKeysSpec, KNOWN)]
)
def test_functions_and_files_have_the_options_of_the_spec(function: Any, spec: type[LookupSpec], decided: Any) -> None:
    _, *shown = inspect.signature(function).parameters
    assert shown == [item.name for item in fields(spec) if item.name not in decided]
    assert STEPS[function.__name__].settings == tuple(shown)


@pytest.mark.parametrize("name", DECIDED)
def test_what_a_pipeline_decides_is_not_asked(store: Path, name: str) -> None:
    options: dict[str, Any] = {"on": "id", name: None}
    with pytest.raises(ArgumentError, match=f"lookup has no argument '{name}'"):
        lookup(store, **options)


def checked_by_types(store: Path) -> None:
    """Never called: mypy reads it, and complains of an ignore that is not needed."""
    lookup(store, on="id", columns=["price"], on_miss="hold", hold_bytes="1GB", memory=None)
    lookup(store, on="id", on_miss="wait")  # type: ignore[arg-type]
    lookup(store, on="id", how="left")  # type: ignore[call-arg]
    assign_keys(store, on="id", infer_members=True, algorithm="sweep")
    assign_keys(store, columns=["price"])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"on_miss": "wait"}, "on_miss='wait' is not known; choose one of 'null', 'drop'"),
        ({"on_null": "drop"}, "on_null='drop' is not known; choose one of 'miss', 'quarantine'"),
        ({"then": "drop"}, "then='drop' is not known"),
        ({"algorithm": "fast"}, "algorithm='fast' is not known; choose one of 'auto'"),
        ({"columns": "price"}, r"columns='price' must be a list of names, for example \['price'\]"),
        ({"min_match_rate": 2}, "min_match_rate=2 must be between 0 and 1"),
        ({"defaults": {"price": 1}, "on_miss": "drop"}, "defaults fill rows without a match, which on_miss='drop'"),
        ({"as_of": "at", "on_miss": "infer"}, "on_miss='infer' makes members of no time"),
        ({"hold_for": "2 moons"}, "hold_for='2 moons' is no length of time"),
        ({"hold_bytes": "much"}, "hold_bytes='much' is not a size; give bytes as a number or a size such as '256MB'"),
        ({"hold_bytes": "10%"}, "hold_bytes='10%' is a share, but of nothing known here; give bytes as a number or"),
        ({"hold_bytes": 0}, "hold_bytes=0 is less than a byte"),
        ({"memory": "much"}, "memory='much' is not a size; .* or a share of the master such as '10%'"),
        ({"memory": 0}, "memory=0 is less than a byte"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused(store: Path, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        lookup(store, on="id", **wrong)


def test_keys_of_a_dimension(tmp_path: Path) -> None:
    Dimension.create(
        tmp_path / "customers",
        key=pa.schema({"customer": pa.string()}),
        attributes=pa.schema({"city": pa.string()}),
        surrogate="sk",
    )
    step = assign_keys(tmp_path / "customers", on="customer", into="key", columns=["city"], unknown_key=-7)
    assert (step.name, step.columns, step.new_name("sk")) == ("customers", ("sk", "city"), "key")
    assert (step.on_miss, step.defaults, step.unknown_key) == ("null", {"sk": -7}, -7)
    made = assign_keys(tmp_path / "customers", on="customer", infer_members=True)
    assert (made.on_miss, made.defaults, made.unknown_key) == ("infer", {}, -1)
    with pytest.raises(ArgumentError, match="unknown_key=True must be a whole number"):
        assign_keys(tmp_path / "customers", on="customer", unknown_key=True)
    with pytest.raises(ArgumentError, match="infer_members=True makes members of no time"):
        assign_keys(tmp_path / "customers", on="customer", as_of="at", infer_members=True)


def test_one_name_is_no_list_of_names(tmp_path: Path) -> None:
    read = source("json", tmp_path, schema={"sale_id": "bigint"})
    with pytest.raises(ArgumentError, match=r"required='sale_id' must be a list of names, for example \['sale_id'\]"):
        Pipeline(read, [], DeltaWarehouse(tmp_path), table="sales", state=tmp_path / "state", required="sale_id")
