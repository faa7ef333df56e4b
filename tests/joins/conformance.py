"""What every join must do, as one function, and the masters and streams to try it on."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.as_of import AsOf
from semistream.budget import Budget
from semistream.joins.contract import Join
from semistream.lookup.bind import LookupPlan, bind
from semistream.lookup.spec import How, JoinSpec, Multiple
from semistream.stores import MasterStore, MemoryStore
from semistream.stores.contract import Store
from tests.tables import assert_same_rows, model_join, table_of

MOST_ROWS = 65_536
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Question:
    """A join to be answered: both sides and how they are joined."""

    store: Store
    master: pa.Table
    schema: pa.Schema
    batches: Sequence[pa.RecordBatch]
    on: Mapping[str, str]
    how: How = "left"
    columns: Sequence[str] | None = None
    suffix: str | None = "_m"
    defaults: Mapping[str, Any] | None = None
    ordered: bool = False
    as_of: AsOf | None = None
    multiple: Multiple = "all"
    status: str | None = None
    threads: int = 1

    @property
    def plan(self) -> LookupPlan:
        moment = self.as_of
        spec = JoinSpec(
            on=self.on,
            how=self.how,
            columns=self.columns,
            suffix=self.suffix,
            defaults=self.defaults,
            ordered=self.ordered,
            multiple=self.multiple,
            status=self.status,
            threads=self.threads,
            **({} if moment is None else dict(zip(("as_of", "valid_from", "valid_to"), astuple(moment), strict=True))),
        )
        return bind(spec, self.schema, self.store)

    @property
    def answer(self) -> pa.Table:
        return self.model(self.how, self.columns, self.suffix, self.defaults, self.status)

    def model(
        self,
        how: How,
        columns: Sequence[str] | None = None,
        suffix: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        status: str | None = None,
    ) -> pa.Table:
        stream = table_of(self.batches, self.schema)
        times = None if self.as_of is None else astuple(self.as_of)
        shape = self.on, how, columns, suffix, defaults, times
        return model_join(stream, self.master, *shape, multiple=self.multiple, status=status)


def conform(join: Join, question: Question) -> None:
    """Fail unless this join gives the rows of the model, in bounded batches, counted right and within its budget."""
    before = join.stats.copy()
    made = []
    for batch in join.join(iter(question.batches)):
        assert batch.schema.equals(join.plan.output), f"{batch.schema}\nis not the planned\n{join.plan.output}"
        assert 0 < batch.num_rows <= MOST_ROWS, f"a batch of {batch.num_rows} rows"
        made.append(batch)
    actual = table_of(made, join.plan.output)
    assert_same_rows(actual, question.answer)
    if question.ordered:
        came = actual["row"].to_numpy()
        assert (np.diff(came) >= 0).all(), f"row {came[1:][np.diff(came) < 0][0]} came too late"
    join.check()
    stats, fed = join.stats.since(before), sum(batch.num_rows for batch in question.batches)
    assert stats.rows_in == fed, f"rows_in is {stats.rows_in}, {fed} rows were fed"
    matching = question.model("semi").num_rows
    assert stats.matched == matching, f"matched is {stats.matched}, {matching} rows have a match"
    assert stats.unmatched == fed - matching
    assert stats.rows_out == actual.num_rows, f"rows_out is {stats.rows_out}, {actual.num_rows} rows came out"
    assert stats.hits + stats.misses <= fed
    assert stats.peak_bytes <= join.budget.total, f"{stats.peak_bytes} bytes held, {join.budget.total} allowed"
    assert join.budget.peak <= join.budget.total


def check_join(kind: type[Join], question: Question, memory: str = "large") -> Join:
    """Run a join once, in the smallest, a small or a large budget, and check it."""
    plan = question.plan
    least = kind.least_bytes(question.store.facts, plan)
    total = {"least": least, "small": least + 6_000, "large": 1 << 26}[memory]
    join = kind(question.store, plan, Budget(total))
    conform(join, question)
    return join


# -- keys: numbers from 0 on, as distinct values of each type ----------------------------------------------------------


def _decimals(numbers: Numbers, factor: str, precision: int, scale: int) -> pa.Array:
    values = [decimal.Decimal(int(n) - 300) * decimal.Decimal(factor) for n in numbers]
    return pa.array(values, pa.decimal128(precision, scale))


def _floats(numbers: Numbers, width: int, *, other: bool) -> pa.Array:
    """0.0, NaN and the infinities first; ``other`` spells zero as -0.0 and NaN with other bits."""
    values = (numbers * 0.25 + 1).astype(f"f{width}")
    bits = values.view(f"u{width}")
    values[numbers == 0] = -0.0 if other else 0.0
    bits[numbers == 1] = np.array([np.nan], f"f{width}").view(f"u{width}")[0]
    bits[numbers == 1] |= (1 << (8 * width - 1)) + 5 if other else 0
    values[numbers == 2] = np.inf
    values[numbers == 3] = -np.inf
    return pa.array(values, from_pandas=False)


def _texts(numbers: Numbers) -> list[str]:
    first = ["", "a", "a\0", "ä", "a\u0308", "A", " a", "1"]
    return [first[n] if n < len(first) else f"key {n} " * (1 + n % 3) for n in numbers.tolist()]


def _integers(kind: pa.DataType, factor: int, shift: int = 300) -> Callable[[Numbers, bool], list[pa.Array]]:
    return lambda numbers, other: [pa.array([(n - shift) * factor for n in numbers.tolist()], kind)]


KEYS: dict[str, Callable[[Numbers, bool], list[pa.Array]]] = {
    "int8": _integers(pa.int8(), 1, 100),
    "int16": _integers(pa.int16(), 100),
    "int32": _integers(pa.int32(), 7_000_000),
    "int64": _integers(pa.int64(), 30_000_000_000_000_007),
    "uint64": _integers(pa.uint64(), (1 << 64) // 610, 0),
    "float32": lambda numbers, other: [_floats(numbers, 4, other=other)],
    "float64": lambda numbers, other: [_floats(numbers, 8, other=other)],
    "bool": lambda numbers, other: [pa.array(numbers > 0)],
    "date32": _integers(pa.date32(), 1),
    "timestamp": _integers(pa.timestamp("us"), 86_399_999_999),
    "timestamp zone": _integers(pa.timestamp("us", "Europe/Berlin"), 86_399_999_999),
    "decimal 10,2": lambda numbers, other: [_decimals(numbers, "1.25", 10, 2)],
    "decimal 30,3": lambda numbers, other: [_decimals(numbers, "1000000000000000000.125", 30, 3)],
    "string": lambda numbers, other: [pa.array(_texts(numbers))],
    "large_string": lambda numbers, other: [pa.array(_texts(numbers), pa.large_string())],
    "binary": lambda numbers, other: [pa.array([t.encode() for t in _texts(numbers)], pa.binary())],
    "fixed binary": lambda numbers, other: [pa.array([b"%05d" % n for n in numbers.tolist()], pa.binary(5))],
    "two": lambda numbers, other: [pa.array(numbers // 10, pa.int32()), pa.array(_texts(numbers % 10))],
    "three": lambda numbers, other: [
        pa.array(numbers // 60),
        pa.array((numbers // 6 % 10).astype(np.int32), pa.date32()),
        pa.array(_texts(numbers % 6), pa.large_string()),
    ],
    "text and NaN": lambda numbers, other: [pa.array(_texts(numbers // 4)), _floats(numbers % 4, 8, other=other)],
}


def present_keys(key: str) -> int:
    """How many distinct keys the master holds; numbers from here to twice as many are absent."""
    return {"bool": 1, "int8": 100}.get(key, 300)


# -- masters -----------------------------------------------------------------------------------------------------------

MASTERS = ("unique", "duplicates", "hot key", "text", "fixed width", "jumbo row")
HOT_ROWS = 500
LAYOUTS = ("sorted", "shuffled")


def master_table(key: str, shape: str, layout: str = "shuffled") -> pa.Table:
    """A master of some hundred rows."""
    chooser = np.random.default_rng(7)
    numbers = np.arange(present_keys(key))
    if shape in ("duplicates", "text"):
        numbers = np.repeat(numbers, chooser.integers(1, 5, len(numbers)))
    elif shape == "hot key":
        numbers = np.concatenate([np.zeros(HOT_ROWS - 1, np.int64), numbers])
    elif shape == "jumbo row":
        numbers = np.concatenate([numbers, numbers[:3], numbers[-1:]])
    if layout == "shuffled":
        numbers = chooser.permutation(numbers)
    keys = {f"k{i}": column for i, column in enumerate(KEYS[key](numbers, False))}
    return pa.table(keys | _payload(shape, len(numbers), chooser))


def _payload(shape: str, count: int, chooser: np.random.Generator) -> dict[str, pa.Array]:
    at = np.arange(count)
    some = chooser.random(count) < 0.2
    columns = {"v": pa.array(at, pa.int64(), mask=some), "w": pa.array(at / 8, mask=chooser.random(count) < 0.2)}
    if shape == "text":
        texts = ["" if n % 7 == 0 else "ü" * (n % 40) + str(n) for n in at.tolist()]
        columns["name"] = pa.array(texts, mask=some)
        columns["raw"] = pa.array([t.encode()[::-1] for t in texts], pa.large_binary(), mask=~some)
    elif shape == "fixed width":
        columns["flag"] = pa.array(at % 3 == 0, mask=some)
        columns["day"] = pa.array(at.astype(np.int32), pa.date32())
        columns["amount"] = pa.array([decimal.Decimal(n) / 4 for n in at.tolist()], pa.decimal128(12, 2), mask=some)
    elif shape == "jumbo row":
        columns["name"] = pa.array(["x" * (10_000 + n) if n % 150 == 0 else str(n) for n in at.tolist()])
    return columns


def key_names(master: pa.Table) -> list[str]:
    return [name for name in master.column_names if name.startswith("k")]


def build(
    path: Path, key: str, shape: str, layout: str = "shuffled", hash_bits: int = 64
) -> tuple[MasterStore, pa.Table]:
    master = master_table(key, shape, layout)
    return MasterStore.build(master, path, key=key_names(master), hash_bits=hash_bits), master


# Every kind of store, from a master and a directory that it may use.
STORES: dict[str, Callable[[pa.Table, Path, int], Store]] = {
    "paged": lambda master, path, bits: MasterStore.build(master, path, key=key_names(master), hash_bits=bits),
    "memory": lambda master, path, bits: MemoryStore.build(master, key=key_names(master), hash_bits=bits),
}


# -- streams -----------------------------------------------------------------------------------------------------------

STREAMS = (
    "all matched",
    "some matched",
    "none matched",
    "null keys",
    "duplicates",
    "empty batches",
    "empty stream",
    "giant batch",
    "single rows",
    "bursts",
)
_CUTS = {
    "empty batches": [0, 0, 40, 0, 1, 0, 60, 0],
    "empty stream": [],
    "giant batch": [600],
    "single rows": [1] * 60,
    "bursts": [1, 250, 2, 1, 120, 0, 40, 1],
}


def stream_batches(key: str, shape: str, most_hot: int = 3) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Batches of the stream, slices of one larger batch; key number 0 comes at most ``most_hot`` times."""
    chooser = np.random.default_rng(11)
    cuts = _CUTS.get(shape, [50, 50, 50, 37])
    count, present = 3 + sum(cuts), present_keys(key)
    numbers = chooser.integers(0, 2 * present, count)
    if shape == "all matched":
        numbers %= present
    elif shape == "none matched":
        numbers = present + numbers % present
    elif shape == "duplicates":
        numbers = chooser.choice(numbers[:10], count)
    numbers[np.flatnonzero(numbers == 0)[most_hot:]] = 1
    absent = chooser.random(count) < (0.4 if shape == "null keys" else 0.02)
    keys = KEYS[key](numbers, True)
    which = chooser.integers(0, len(keys), count)
    columns: dict[str, pa.Array] = {
        f"s{i}": _with_nulls(column, absent & (which == i)) for i, column in enumerate(keys)
    }
    columns["row"] = pa.array(np.arange(count))
    columns["v"] = pa.array([f"n{n}" for n in range(count)], mask=chooser.random(count) < 0.1)
    whole = pa.record_batch(columns)
    ends = 3 + np.cumsum([0, *cuts])
    return whole.schema, [whole.slice(start, size) for start, size in zip(ends.tolist(), cuts, strict=False)]


def _with_nulls(column: pa.Array, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.compute.if_else(pa.array(nulls), pa.scalar(None, column.type), column)


OUTPUTS = ("all columns", "some columns", "key too", "no columns", "defaults")


def question(store: Store, master: pa.Table, key: str, stream: str, how: How, output: str) -> Question:
    """A case of the conformance suite."""
    schema, batches = stream_batches(key, stream)
    names = key_names(master)
    columns = {"some columns": ["w"], "key too": ["v", *names], "no columns": []}.get(output)
    defaults = {"w": -1.5, "v_m": 77} if output == "defaults" and how == "left" else None
    on = {f"s{i}": name for i, name in reversed(list(enumerate(names)))}
    return Question(store, master, schema, batches, on, how, columns, "_m", defaults)


# -- histories: several versions of each key, each valid for a time ---------------------------------------------------

TIMES: dict[str, tuple[pa.DataType, pa.DataType]] = {  # of the stream and of the master
    "date32": (pa.date32(), pa.date32()),
    "date64": (pa.date32(), pa.date64()),
    "timestamp": (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")),
    "coarser master": (pa.timestamp("ns"), pa.timestamp("s")),
    "finer master": (pa.timestamp("ms", "UTC"), pa.timestamp("ns", "UTC")),
    "numbers": (pa.int64(), pa.int32()),
}
LONG_HISTORY = 150  # versions of key number 0: more than a page holds


def moments(numbers: Numbers, kind: pa.DataType, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    """Whole numbers as values of a type, the same moment for the same number whatever the unit."""
    if pa.types.is_integer(kind):
        return pa.array(numbers, kind, mask=nulls)
    day = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400 * 10**9}
    per = day[kind.unit] if pa.types.is_timestamp(kind) else {pa.date32(): 1, pa.date64(): day["ms"]}[kind]
    whole = pa.array(numbers * per, pa.int32() if kind == pa.date32() else pa.int64(), mask=nulls)
    return whole.view(kind)


HISTORIES = ("single", "versions", "overlaps")


def history_table(key: str, times: str, shape: str = "versions", *, keys: int = 60, text: bool = False) -> pa.Table:
    """A history of each key: gaps between some versions, NULL at some ends; or overlaps too, or one version each."""
    chooser = np.random.default_rng(13)
    overlaps = shape == "overlaps"
    counts = np.ones(keys, np.int64) if shape == "single" else chooser.integers(1, 6, keys)
    if shape != "single":
        counts[0] = LONG_HISTORY
    numbers = np.repeat(np.arange(keys), counts)
    at = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
    last = at == np.repeat(counts, counts) - 1
    begins = 10 * at + 5
    ends = begins + 10 - chooser.choice([0, 0, 3], len(at)) + (chooser.choice([0, 12], len(at)) if overlaps else 0)
    always, still = (at == 0) & (chooser.random(len(at)) < 0.5), last & (chooser.random(len(at)) < 0.7)
    kind = TIMES[times][1]
    columns = {f"k{i}": column for i, column in enumerate(KEYS[key](numbers, False))}
    columns |= {"valid_from": moments(begins, kind, always), "valid_to": moments(ends, kind, still)}
    columns |= {"v": pa.array(np.arange(len(at))), "w": pa.array(at / 8, mask=at % 4 == 1)}
    if text:
        columns["name"] = pa.array(["ü" * (n % 9) + str(n) for n in range(len(at))], mask=at % 5 == 2)
    return pa.table(columns).take(pa.array(chooser.permutation(len(at))))


def history_question(
    store: Store, master: pa.Table, key: str, times: str, how: How, *, keys: int = 60, **options: Any
) -> Question:
    """Events of present and absent keys, on the edges of versions, in gaps, too early, too late, and without a time."""
    chooser = np.random.default_rng(17)
    count = 160
    numbers = chooser.integers(0, keys + 10, count)
    numbers[::5] = chooser.integers(0, 4, len(numbers[::5]))
    numbers[np.flatnonzero(numbers == 0)[3:]] = 1
    at = 10 * chooser.integers(-1, 6, count) + chooser.choice([4, 5, 6, 11, 12, 13], count)
    at[numbers == 0] = chooser.integers(0, 10 * LONG_HISTORY + 20, int((numbers == 0).sum()))
    names = [name for name in master.column_names if name.startswith("k")]
    columns: dict[str, pa.Array] = {
        f"s{i}": _with_nulls(column, chooser.random(count) < 0.03) for i, column in enumerate(KEYS[key](numbers, True))
    }
    columns["row"] = pa.array(np.arange(count))
    columns["event"] = moments(at, TIMES[times][0], chooser.random(count) < 0.05)
    whole = pa.record_batch(columns)
    batches = [whole.slice(start, 45) for start in range(0, count, 45)]
    on = {f"s{i}": name for i, name in enumerate(names)}
    return Question(store, master, whole.schema, batches, on, how, as_of=AsOf("event"), **options)
