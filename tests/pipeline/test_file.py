"""Pipelines from files: what is wrong is named with its line and the choices, before Spark starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from semistream.commands import main as cli
from semistream.pipeline import PipelineFileError, load
from semistream.pipeline.steps.compute import Compute
from semistream.pipeline.steps.deduplicate import Deduplicate
from semistream.pipeline.steps.keep import Keep
from semistream.pipeline.steps.lookup import Lookup
from semistream.pipeline.steps.select import Select
from tests.pipeline.shop import Shop

FILE = """\
name = "sales"
state = "state"
memory = "64MB"
max_bad_rate = 0.5

[source]
format = "json"
path = "incoming"
schema = { sale_id = "bigint", product = "string", shop = "int", customer = "string", quantity = "int" }
maxFilesPerTrigger = 1

[[step]]
deduplicate = ["sale_id"]

[[step]]
lookup = "stores/products"
on = { product = "id" }
columns = ["price"]
on_miss = "hold"
hold_for = "2 hours"

[[step]]
keep = "quantity > 0"

[[step]]
compute = { revenue = "quantity * price" }

[[step]]
assign_keys = "stores/customers"
on = "customer"
infer_members = true

[[step]]
select = ["sale_id", "customer_sk", "revenue"]

[sink]
delta = "warehouse"
table = "sales"
"""


def written(shop: Shop, text: str) -> Path:
    path = shop.root / "sales.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_whole_file(shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(shop, FILE)
    pipeline = load(path)
    assert [type(step) for step in pipeline.steps] == [Deduplicate, Lookup, Keep, Compute, Lookup, Select]
    assert (pipeline.name, pipeline.table, pipeline.state) == ("sales", "sales", shop.root / "state")
    monkeypatch.setattr(sys, "argv", ["semistream", "check", str(path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (0, None)
    said = capsys.readouterr().out
    assert "lookup products on product" in said
    assert said.endswith("all right\n")
    for line in (
        "keep where quantity > 0",
        "compute revenue = quantity * price",
        "select sale_id, customer_sk, revenue",
    ):
        assert f"{line}\n" in said
    assert "(columns=" not in said


WRONG = [
    ('format = "json"', 'format = "jsn"', 7, "format='jsn' is not known; choose one of 'parquet', 'csv', 'json'"),
    ('path = "incoming"', 'path = "nowhere"', 8, "is no directory"),
    ('quantity = "int" }', 'quantity = "integr" }', 9, "column 'quantity' has the unknown type 'integr'; use one of"),
    ('memory = "64MB"', 'memory = "64 apples"', 3, "64 apples"),
    ("max_bad_rate = 0.5", "max_bad_rate = 5", 4, "max_bad_rate=5 must be between 0 and 1"),
    ("max_bad_rate = 0.5", "max_bad = 0.5", 4, "the file has no setting 'max_bad'; it has name, state"),
    ('deduplicate = ["sale_id"]', 'deduplicate = ["id"]', 13, "there is no column 'id' here; there are ['sale_id'"),
    ('lookup = "stores/products"', 'lookup = "stores/produce"', 16, "there is no semistream store at"),
    ('on = { product = "id" }', 'on = { shop = "id" }', 17, "int32"),
    ('on = { product = "id" }', 'on = { produkt = "id" }', 17, "there is no column 'produkt' here"),
    ('columns = ["price"]', 'columns = ["prize"]', 18, "'prize'"),
    ('on_miss = "hold"', 'on_miss = "wait"', 19, "on_miss='wait' is not known; choose one of 'null', 'drop'"),
    ('hold_for = "2 hours"', 'hold_for = "2 moons"', 20, "hold_for='2 moons' is no length of time"),
    ('hold_for = "2 hours"', 'hold = "2 hours"', 20, "a lookup has no setting 'hold'; it has on, columns"),
    ('hold_for = "2 hours"', 'hold_bytes = "much"', 20, "hold_bytes='much' is not a size; give bytes"),
    ('hold_for = "2 hours"', 'hold_bytes = "10%"\nmemory = "1MB"', 20, "hold_bytes='10%' is a share, but of nothing"),
    ('hold_for = "2 hours"', 'memory = "64 apples"', 20, "memory='64 apples' is not a size"),
    ("infer_members = true", 'memory = "64 pears"', 31, "memory='64 pears' is not a size"),
    ('deduplicate = ["sale_id"]', 'deduplicate = "sale_id"\nmemory = "0B"', 14, "memory='0B' is less than a byte"),
    ('keep = "quantity > 0"', 'keep = "quantity > "', 23, "is no expression in Spark SQL"),
    ('keep = "quantity > 0"', 'keep = "amount > 0"', 23, "there is no column 'amount' here"),
    ('keep = "quantity > 0"', 'keeps = "quantity > 0"', 22, "a step is one of lookup, assign_keys, compute"),
    ('revenue = "quantity * price"', 'price = "quantity * price"', 26, "there is a column 'price' already"),
    ('assign_keys = "stores/customers"', 'assign_keys = "stores/products"', 29, "imension"),
    ('select = ["sale_id", ', 'select = ["sales_id", ', 34, "there is no column 'sales_id' here"),
    ('delta = "warehouse"', 'oracle = "warehouse"', 36, "the sink is one of delta, postgres"),
    ('table = "sales"', "", 37, "the sink needs a table"),
    ('on_miss = "hold"', 'on_mis = "hold"', 19, "(did you mean 'on_miss'?)"),
    ('on_miss = "hold"', 'on_miss = "held"', 19, "(did you mean 'hold'?)"),
    ('format = "json"', 'format = "jsn"', 7, "(did you mean 'json'?)"),
    ('memory = "64MB"', 'memroy = "64MB"', 3, "(did you mean 'memory'?)"),
    ('keep = "quantity > 0"', 'keeep = "quantity > 0"', 22, "(did you mean 'keep'?)"),
    ('keep = "quantity > 0"', 'keep = "quantty > 0"', 23, "(did you mean 'quantity'?)"),
    ('columns = ["price"]', 'columns = ["prise"]', 18, "(did you mean 'price'?)"),
    ('delta = "warehouse"', 'dleta = "warehouse"', 36, "(did you mean 'delta'?)"),
    ('quantity = "int" }', 'quantity = "integr" }', 9, "(did you mean 'integer'?)"),
    # Dotted and inline settings have lines too.
    ('path = "incoming"', '"path" = "nowhere"', 8, "is no directory"),
    (
        'schema = { sale_id = "bigint", product',
        'schema.sale_id = "bgint"\nother = { product',
        9,
        "did you mean 'bigint'",
    ),
    ('on = { product = "id" }', 'on.shop = "id"', 17, "int32"),
    ('compute = { revenue = "quantity * price" }', 'compute.revenue = "quantity * "', 26, "is no expression"),
    ('[sink]\ndelta = "warehouse"', '[sink]\noption.x = 1\ndelta = "warehouse"', 37, "has no setting 'option'"),
]
DOTTED = """\
state = "state"
source.format = "json"
source . path = "incoming"
source.schema.sale_id = "bigint"
source.schema.product = "string"
sink."delta" = "warehouse"
sink.table = "sales"
shed.strategy = "keep_w"

[[step]]
keep = "sale_id > 0"

[[step]]
compute.double = "sale_id * 2"

[dimensions]
"""


@pytest.mark.parametrize(
    "old, new, line, words",
    [
        ('source.format = "json"', 'source.format = "jsn"', 2, "choose one of"),
        ('source . path = "incoming"', 'source . path = "nowhere"', 3, "is no directory"),
        ('"bigint"', '"bgint"', 4, "unknown type"),
        ('sink."delta" =', 'sink."dolta" =', 6, "the sink is one of"),
        ('sink.table = "sales"', 'sink.tabel = "sales"', 7, "has no setting 'tabel'"),
        ('shed.strategy = "keep_w"', 'shed.strategy = "all"', 8, "strategy="),
        ('compute.double = "sale_id * 2"', 'compute.double = "sale * 2"', 14, "no column 'sale'"),
        ("[dimensions]", '[dimensions]\nx = "s3://b/x"', 17, "is remote"),
    ],
)
def test_dotted_names_have_lines(shop: Shop, old: str, new: str, line: int, words: str) -> None:
    load(written(shop, DOTTED))
    is_named(shop, DOTTED, old, new, line, words)


# A list of texts, a table, a number, a flag or a text that is something else.
OTHER_KINDS = [
    ('name = "sales"', "name = 5", 1, "name = 5 must be a text"),
    ('state = "state"', "state = true", 2, "state = True must be a text"),
    ('memory = "64MB"', "memory = [64]", 3, "memory = [64] must be a number of bytes or a text"),
    ("max_bad_rate = 0.5", "max_bad_rate = true", 4, "max_bad_rate = True must be a number"),
    ("max_bad_rate = 0.5", 'required = "sale_id"', 4, "required = 'sale_id' must be a list of texts"),
    ("max_bad_rate = 0.5", "required = 5", 4, "required = 5 must be a list of texts"),
    ("max_bad_rate = 0.5", 'dimensions = "x"', 4, "dimensions = 'x' must be a table of texts"),
    ("max_bad_rate = 0.5", "dimensions = { x = 5 }", 4, "must be a table of texts"),
    ('[source]\nformat = "json"', 'source = 5\n[other]\nformat = "json"', 6, "source = 5 must be a table"),
    ('path = "incoming"', 'path = ["incoming"]', 8, "path = ['incoming'] must be a text"),
    ("maxFilesPerTrigger = 1", "maxFilesPerTrigger = [1]", 10, "maxFilesPerTrigger=[1] must be one value"),
    ('deduplicate = ["sale_id"]', 'deduplicate = { sale_id = "x" }', 13, "must be a text or a list of texts"),
    ('deduplicate = ["sale_id"]', 'deduplicate = "sale_id"\norder_by = 5', 14, "order_by = 5 must be a text or a list"),
    ('deduplicate = ["sale_id"]', 'deduplicate = "sale_id"\nmemory = true', 14, "memory = True must be a number"),
    ('lookup = "stores/products"', "lookup = 5", 16, "lookup = 5 must be a text"),
    ('columns = ["price"]', "columns = 5", 18, "columns = 5 must be a list of texts"),
    ('columns = ["price"]', "columns = [5]", 18, "columns = [5] must be a list of texts"),
    ('hold_for = "2 hours"', "hold_bytes = true", 20, "hold_bytes = True must be a number of bytes"),
    ('hold_for = "2 hours"', 'rename = "price"', 20, "rename = 'price' must be a table of texts"),
    ('hold_for = "2 hours"', "rename = { price = 5 }", 20, "must be a table of texts"),
    ('hold_for = "2 hours"', "min_match_rate = true", 20, "min_match_rate = True must be a number"),
    ('hold_for = "2 hours"', "name = 5", 20, "name = 5 must be a text"),
    ('compute = { revenue = "quantity * price" }', 'compute = "a"', 26, "compute = 'a' must be a table, such as"),
    ('assign_keys = "stores/customers"', "assign_keys = []", 29, "assign_keys = [] must be a text"),
    ("infer_members = true", 'infer_members = "no"', 31, "infer_members = 'no' must be true or false"),
    ("infer_members = true", "into = 5", 31, "into = 5 must be a text"),
    ('select = ["sale_id", "customer_sk", "revenue"]', 'select = "sale_id"', 34, "select = 'sale_id' must be a list"),
    ('select = ["sale_id", "customer_sk", "revenue"]', "select = [5]", 34, "select = [5] must be a list"),
    ('select = ["sale_id", "customer_sk", "revenue"]', "select = { a = 5 }", 34, "must be a list of texts"),
    ('delta = "warehouse"', "delta = 5", 37, "delta = 5 must be a text"),
    ('table = "sales"', "table = 5", 38, "table = 5 must be a text"),
]
KINDLESS = """\
state = "state"
step = 5
source = { format = "json", path = "incoming", schema = "id" }
sink = { delta = "warehouse", table = "sales" }
"""


@pytest.mark.parametrize("old, new, line, words", OTHER_KINDS, ids=[new[:40] for _, new, _, _ in OTHER_KINDS])
def test_what_is_of_another_kind_is_named(shop: Shop, old: str, new: str, line: int, words: str) -> None:
    is_named(shop, FILE, old, new, line, words)


def test_tables_of_another_kind_are_named(shop: Shop) -> None:
    is_named(shop, KINDLESS, "step = 5", "step = 5", 2, "step = 5 must be a list of tables, each under [[step]]")
    is_named(shop, KINDLESS, "step = 5", "step = [5]", 2, "step = [5] must be a list of tables")
    is_named(shop, KINDLESS, "step = 5\n", "", 2, "schema='id' must be {column: type}")
    text = KINDLESS.replace("step = 5\n", "")
    is_named(
        shop, text, 'sink = { delta = "warehouse", table = "sales" }', 'sink = "x"', 3, "sink = 'x' must be a table"
    )


@pytest.mark.parametrize("old, new, line, words", WRONG, ids=[f"{line}-{words[:24]}" for _, _, line, words in WRONG])
def test_what_is_wrong_is_named(shop: Shop, old: str, new: str, line: int, words: str) -> None:
    is_named(shop, FILE, old, new, line, words)


def is_named(shop: Shop, text: str, old: str, new: str, line: int, words: str) -> None:
    assert text.count(old) >= 1
    path = written(shop, text.replace(old, new, 1))
    with pytest.raises(PipelineFileError) as error:
        load(path)
    assert f"{path}, line {line}: " in str(error.value)
    assert words in str(error.value)


def test_no_toml(shop: Shop) -> None:
    with pytest.raises(PipelineFileError, match=r"sales.toml: .*line 1"):
        load(written(shop, "name = sales"))
    with pytest.raises(PipelineFileError, match="there is no file"):
        load(shop.root / "nothing.toml")


def test_checking_starts_no_spark(shop: Shop) -> None:
    path = written(shop, FILE)
    code = f"from semistream.pipeline import load; load({str(path)!r}).check()"
    code += "; import sys; assert 'py4j' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
