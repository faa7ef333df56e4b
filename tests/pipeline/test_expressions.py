"""What `compute` and `keep` may do: one value of one row, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from semistream.errors import ArgumentError, StepError
from semistream.pipeline import compute, keep
from semistream.pipeline.expressions import AGGREGATES, CODE, GENERATORS, WINDOWS, columns_of
from semistream.pipeline.steps import check_steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = "makes several rows of one"
OTHERS = "needs other rows"
REFUSED = [
    ("explode(split(x, ','))", "explode makes several rows"),
    ("EXPLODE_OUTER (x)", "explode_outer makes several rows"),
    ("coalesce(posexplode(x), 1)", "posexplode makes several rows"),
    ("transform(x, y -> explode(y))", "explode makes several rows"),
    ("json_tuple(x, 'a')", "json_tuple makes several rows"),
    ("variant_explode(x)", "variant_explode makes several rows"),
    ("stack(2, x, y)", "stack makes several rows"),
    ("window(x, '5 minutes')", "window makes several rows"),
    ("row_number() OVER (ORDER BY x)", "row_number needs other rows"),
    ("lag(x) OVER (ORDER BY y)", "lag needs other rows"),
    ("x + sum(x) OVER ()", "sum needs other rows"),
    ("my_function(x) OVER (ORDER BY y)", "a window or an aggregate needs other rows"),
    ("count(*)", "count needs other rows"),
    ("any(x)", "any needs other rows"),
    ("mean(x)", "mean needs other rows"),
    ("max(x) FILTER (WHERE y > 1)", "max needs other rows"),
    ("(SELECT max(x) FROM other)", "max needs other rows"),
    ("x IN (SELECT y FROM other)", "a query needs other rows"),
    ("EXISTS (SELECT 1 FROM other)", "a query needs other rows"),
    ("SELECT x", "a query needs other rows"),
    ("reflect('java.lang.System', 'getenv', 'HOME')", "reflect calls Java"),
    ("`reflect`('java.lang.System', 'exit', 1)", "reflect calls Java"),
    ("system.builtin.reflect('java.lang.System', 'exit', 1)", "reflect calls Java"),
    ("concat(x, JAVA_METHOD('a', 'b'))", "java_method calls Java"),
    ("try_reflect /* it */ ('a', 'b')", "try_reflect calls Java"),
    ("x; DROP TABLE y", "a statement, or several"),
    ("DROP TABLE y", "a statement, or several"),
    ("x >", "is no expression in Spark SQL"),
]
ALLOWED = {
    "quantity * price": ["quantity", "price"],
    "greatest(x, y)": ["x", "y"],
    "exists(x, y -> y > z)": ["x", "z"],
    "aggregate(x, 0, (a, b) -> a + b)": ["x"],
    "filter(x, y -> y > 1)": ["x"],
    "concat(x, 'explode(y)', 'reflect(')": ["x"],
    "x IN (1, 2)": ["x"],
    "CASE WHEN first > 1 THEN last ELSE `max` END": ["first", "last", "max"],
    "array_max(x) + size(y)": ["x", "y"],
    "window > 1": ["window"],
    "get_json_object(x, '$.explode')": ["x"],
    "NOT (x AND (y OR z))": ["x", "y", "z"],
}


@pytest.mark.parametrize("text, words", REFUSED)
def test_refused(text: str, words: str) -> None:
    for step in (compute(new=text), keep(text)):
        with pytest.raises(StepError, match=words) as found:
            check_steps([step], None)
        assert "<class" not in str(found.value)
        assert "\x1b" not in str(found.value)


@pytest.mark.parametrize("text", ALLOWED)
def test_allowed(text: str) -> None:
    assert sorted(columns_of(text)) == sorted(ALLOWED[text])


def test_all_functions_of_spark(spark: SparkSession) -> None:
    """The names are those of the groups in Spark's own registry, and every table function is among them."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.expressions().iterator()
    groups: dict[str, set[str]] = {}
    while registry.hasNext():
        item = registry.next()
        groups.setdefault(item._2()._1().getGroup(), set()).add(item._1())
    assert groups["agg_funcs"] <= AGGREGATES
    assert groups["window_funcs"] <= WINDOWS
    assert groups["generator_funcs"] <= GENERATORS
    everything = set().union(*groups.values())
    assert {name for name in everything if "reflect" in name or "java" in name} == CODE
    for name in AGGREGATES | WINDOWS | GENERATORS | CODE:
        with pytest.raises(ArgumentError, match=f"{name} (needs|makes|calls)"):
            columns_of(f"{name}(x)")
    for name in everything - AGGREGATES - WINDOWS - GENERATORS - CODE:
        if name.isidentifier() and not name.startswith("from_"):
            try:
                columns_of(f"{name}(x)")
            except ArgumentError as error:
                assert "is no expression" in str(error), error  # noqa: PT017 - keywords and wrong numbers of arguments
