"""What is asked of a lookup: declared once, shown by every function, checked by the types, and told in JSON."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from semistream import MasterStore, join, make_join
from semistream.errors import ArgumentError
from semistream.lookup.spec import JoinSpec, LookupSpec, asks
from semistream.shedding import Shed
from semistream.spark import enrich, explain
from semistream.spark.spec import EnrichSpec

Colour = Literal["red", "blue"]


@pytest.mark.parametrize(
    "function, spec, own",
    [
        (join, JoinSpec, ["batches", "store"]),
        (make_join, JoinSpec, ["schema", "store"]),
        (enrich, EnrichSpec, ["df", "store"]),
        (explain, EnrichSpec, ["df", "store"]),
    ],
)
def test_functions_have_the_arguments_of_the_spec(
    function: Callable[..., Any], spec: type[LookupSpec], own: list[str]
) -> None:
    shown = inspect.signature(function).parameters
    assert list(shown) == [*own, *(item.name for item in fields(spec))]
    assert shown["how"].default == "left"
    assert shown["how"].kind is inspect.Parameter.KEYWORD_ONLY
    assert shown["how"].annotation == Literal["left", "inner", "semi", "anti"]


def checked_by_types(batch: pa.RecordBatch, store: MasterStore) -> None:
    """Never called: mypy reads it, and complains of an ignore that is not needed."""
    join([batch], store, on="id", how="inner", columns=["price"], wait_seconds=1.0)
    join([batch], store, on="id", how="outer")  # type: ignore[arg-type]
    join([batch], store, on="id", colums=["price"])  # type: ignore[call-arg]
    enrich(batch, store, on={"product": "id"}, on_miss="drop", transport="keys")
    enrich(batch, store, on="id", on_miss="skip")  # type: ignore[arg-type]
    enrich(batch, store, how="left")  # type: ignore[call-arg]


def test_an_unknown_argument_is_named_with_what_was_meant(tmp_path: Path) -> None:
    options: dict[str, Any] = {"on": "id", "colums": ["price"]}
    with pytest.raises(ArgumentError, match=r"join has no argument 'colums' \(did you mean 'columns'\?\); it has"):
        join([], tmp_path, **options)
    with pytest.raises(TypeError, match="missing a required argument: 'store'"):
        join([])  # type: ignore[call-arg]


def test_the_stream_and_the_store_may_be_named(tmp_path: Path) -> None:
    store = MasterStore.build(pa.table({"id": [1], "price": [2.5]}), tmp_path / "store", key="id")
    call: Callable[..., Any] = join
    named = call(batches=[pa.record_batch({"id": [1]})], store=store, on="id")
    assert pa.Table.from_batches(named).to_pylist() == [{"id": 1, "price": 2.5}]


def test_an_option_is_declared_once() -> None:
    """A new one is a field: functions show it, its choices are checked, JSON has it."""

    @dataclass(frozen=True, kw_only=True)
    class Wider(LookupSpec):
        colour: Colour = "red"

    @asks(Wider)
    def coloured(stream: int, store: int, spec: Wider) -> str:
        return f"{stream} {store} {spec.colour}"

    assert coloured(1, 2, on="id", colour="blue") == "1 2 blue"
    assert Wider.from_json(Wider(on="id", colour="blue").as_json()).colour == "blue"
    wrong: Any = "bleu"
    with pytest.raises(ArgumentError, match=r"colour='bleu' is not known; choose one of 'red', 'blue'"):
        coloured(1, 2, on="id", colour=wrong)


DEFAULTS: dict[str, Any] = {
    "none": None,
    "whole": 2**70,
    "text": "ü",
    "truth": True,
    "number": -0.5,
    "bytes": b"\x00\xff",
    "price": Decimal("1.50"),
    "day": date(2024, 2, 29),
    "at": datetime(2024, 2, 29, 12, 0, 0, 5, tzinfo=UTC),
    "local": datetime(2024, 2, 29, 12),
    "clock": time(23, 59, 59, 999_999),
    "wait": timedelta(days=1, microseconds=7),
    "list": [1, None, 3],
    "struct": {"arrow": "no", "n": 5},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_there_and_back_by_json(name: str) -> None:
    spec = LookupSpec(
        on={"product": "id"}, columns=["price"], memory=1 << 20, as_of="sold", defaults={name: DEFAULTS[name]}
    )
    again = LookupSpec.from_json(json.loads(json.dumps(spec.as_json())))
    assert again == spec
    assert type((again.defaults or {})[name]) is type(DEFAULTS[name])


def test_without_what_an_engine_adds() -> None:
    spec = JoinSpec(on="id", how="inner", shed=Shed("keep_w", to="shed"), wait_seconds=2.0)
    assert spec.copy_to(LookupSpec) == LookupSpec(on="id", how="inner")
