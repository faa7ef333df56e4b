"""Moments are compared exactly, whatever their units; the page on as-of lookups does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.as_of import AsOf
from semistream.errors import SchemaError
from tests.tables import model_join

PAGE = (Path(__file__).parents[1] / "docs" / "as_of.md").read_text(encoding="utf-8")
KINDS = [
    pa.int8(), pa.int64(), pa.uint8(), pa.uint64(), pa.date32(), pa.date64(),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
]  # fmt: skip
FAMILIES = [[k for k in KINDS if test(k)] for test in (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp)]


@st.composite
def compared(draw: st.DrawFn) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Three columns of one family, extreme values among them."""
    family, count, made = draw(st.sampled_from(FAMILIES)), draw(st.integers(0, 8)), []
    for _ in range(3):
        kind = draw(st.sampled_from(family))
        unsigned = pa.types.is_unsigned_integer(kind)
        bits = kind.bit_width - (0 if unsigned else 1)
        low, high = 0 if unsigned else -(2**bits), 2**bits - 1
        number = st.integers(low, high) | st.sampled_from([low, high]) | st.integers(max(low, -9), 9)
        values = draw(st.lists(st.none() | number, min_size=count, max_size=count))
        plain = {32: pa.int32(), 64: pa.int64()}.get(kind.bit_width)
        made.append(pa.array(values, kind if pa.types.is_integer(kind) else plain).view(kind))
    return made[0], made[1], made[2]


@settings(max_examples=300, deadline=None)
@given(columns=compared())
def test_moments_compare_exactly(columns: tuple[pa.Array, pa.Array, pa.Array]) -> None:
    """In any units, also where one does not fit the other, as whole numbers of any size compare."""
    at, begins, ends = columns
    count = len(at)
    stream = pa.table({"k": range(count), "at": at})
    master = pa.table({"k": range(count), "valid_from": begins, "valid_to": ends})
    expected = model_join(stream, master, "k", "semi", as_of=("at", "valid_from", "valid_to"))
    got = AsOf("at").covers(at, begins, ends)
    assert np.flatnonzero(got).tolist() == expected["k"].to_pylist()
    sliced = AsOf("at").covers(at[1:], begins[1:], ends[1:])
    assert sliced.tolist() == got[1:].tolist()


NEAR = [
    pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.int64(), pa.float64(), pa.string(), pa.bool_(),
    pa.time64("us"), pa.duration("us"),
]  # fmt: skip


@pytest.mark.parametrize("theirs", NEAR, ids=str)
@pytest.mark.parametrize("ours", NEAR, ids=str)
def test_types_must_agree(ours: pa.DataType, theirs: pa.DataType) -> None:
    """Nothing is cast: a date is no timestamp, and a time without a zone is none with one."""
    stream = pa.schema([("k", pa.int64()), ("at", ours)])
    master = pa.schema([("k", pa.int64()), ("valid_from", ours), ("valid_to", theirs)])
    if ours == theirs and NEAR.index(ours) < 4:
        AsOf("at").check(stream, master, ["k"])
        return
    wrong = "valid_from" if NEAR.index(ours) >= 4 else "valid_to"
    with pytest.raises(SchemaError) as raised:
        AsOf("at").check(stream, master, ["k"])
    assert f"as_of='at' is {ours}, the master's '{wrong}' is" in str(raised.value)
    assert str(theirs) in str(raised.value) or wrong == "valid_from"


@pytest.mark.parametrize("ours", [pa.timestamp("ns", "Asia/Tokyo"), pa.dictionary(pa.int8(), pa.timestamp("s", "UTC"))])
def test_layouts_that_mean_the_same(ours: pa.DataType) -> None:
    theirs = pa.timestamp("ms", "Europe/Berlin")
    stream = pa.schema([("k", pa.int64()), ("at", ours)])
    AsOf("at").check(stream, pa.schema([("k", pa.int64()), ("valid_from", theirs), ("valid_to", theirs)]), ["k"])
    plain = pa.timestamp("s", "UTC") if pa.types.is_dictionary(ours) else ours
    at = pa.array([1, 2, None], pa.int64()).cast(plain)
    if pa.types.is_dictionary(ours):
        at = at.dictionary_encode()
    bounds = [pa.array([number] * 3, theirs) for number in (1_000, 2_000)]
    expected = [True, False, False] if pa.types.is_dictionary(ours) else [False, False, False]
    assert AsOf("at").covers(at, *bounds).tolist() == expected


def test_examples_of_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one namespace; each prints what stands behind it as a comment. Those with Spark are run by tests/spark."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for example in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        code = compile(example, "docs/as_of.md", "exec")
        if "semistream.spark" in example:
            continue
        exec(code, names)
        assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)$", example, re.MULTILINE)
