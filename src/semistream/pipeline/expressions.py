"""Expressions in Spark SQL: which columns they use, and what they must not do.

What makes several rows of one or needs other rows would lose rows or make up new ones, and what calls Java runs code:
all are refused by the names of Spark's registry of functions (a test compares them), and by what the parser knows.
"""

import itertools

from semistream.errors import ArgumentError


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


GENERATORS = _names("""
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack variant_explode
    variant_explode_outer window session_window
""")
WINDOWS = _names("counter_diff cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number")
AGGREGATES = _names("""
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate
    approx_top_k_combine array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg
    bool_and bool_or collect_list collect_set collect_union corr count count_if count_min_sketch covar_pop
    covar_samp every first first_value grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg
    kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double
    kll_sketch_agg_float kurtosis last last_value listagg max max_by mean measure median min min_by mode
    percentile percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept
    regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp string_agg sum
    theta_intersection_agg theta_sketch_agg theta_union_agg try_avg try_sum schema_of_variant_agg
    tuple_intersection_agg_double tuple_intersection_agg_integer tuple_sketch_agg_double
    tuple_sketch_agg_integer tuple_union_agg_double tuple_union_agg_integer var_pop var_samp variance
""")
CODE = _names("reflect java_method try_reflect")
# They give NULLs for what they cannot read, so they must be told what becomes of it.
PARSERS = _names("from_json from_csv from_xml from_avro")
_REFUSED = (
    (GENERATORS, "makes several rows of one, and every input row is counted once; split the records before the source"),
    (WINDOWS, "needs other rows, and an expression sees one"),
    (AGGREGATES, "needs other rows, and an expression sees one; aggregate in the warehouse"),
    (CODE, "calls Java, and an expression computes values only; use a function of Spark SQL"),
)


def columns_of(expression: str) -> list[str]:
    """The columns that an expression uses; an error when it is none, or does more than it may.

    >>> columns_of("quantity * price")
    ['quantity', 'price']
    """
    try:
        import sqlglot
        from sqlglot import expressions as sql
    except ImportError:
        raise ArgumentError("a pipeline needs the package sqlglot; run: pip install 'semistream[pipeline]'") from None
    try:
        tokens = itertools.pairwise(sqlglot.tokenize(expression, read="spark"))
        functions = [one.text.lower() for one, after in tokens if after.text == "(" and one.token_type.name != "STRING"]
        for name in functions:
            for names, reason in _REFUSED:
                if name in names:
                    raise ArgumentError(f"{expression!r}: {name} {reason}")
        trees = sqlglot.parse(expression, dialect="spark")
    except (sqlglot.errors.SqlglotError, LookupError, TypeError, AttributeError) as error:
        # The parser speaks of its own classes; where it stopped is what helps.
        if not isinstance(error, sqlglot.errors.SqlglotError):
            where = "a function has too few arguments"
        elif found := getattr(error, "errors", None):
            where = f"it cannot be understood near {found[0]['highlight']!r}"
        else:
            where = "a quote is not closed"
        raise ArgumentError(f"{expression!r} is no expression in Spark SQL: {where}") from error
    if len(trees) != 1 or not isinstance(trees[0], sql.Condition | sql.Query):
        raise ArgumentError(f"{expression!r} is no expression in Spark SQL: it is a statement, or several")
    tree = trees[0]
    for kinds, reason in (
        ((sql.Query, sql.Subquery), "a query needs other rows, and an expression sees one; use a lookup"),
        ((sql.Window, sql.AggFunc), "a window or an aggregate needs other rows, and an expression sees one"),
        ((sql.UDTF,), "it makes several rows of one, and every input row is counted once"),
    ):
        if tree.find(*kinds) is not None:
            raise ArgumentError(f"{expression!r}: {reason}")
    parser = next((name for name in functions if name in PARSERS), None)
    if parser and not any(text.name.lower() == "mode" for text in tree.find_all(sql.Literal)):
        raise ArgumentError(
            f"{expression!r}: {parser} gives NULLs for a record that it cannot read. Say that this may be, by "
            "map('mode', 'PERMISSIVE') as its last argument, or let the run stop, by map('mode', 'FAILFAST')"
        )
    lambdas = {name.name for one in tree.find_all(sql.Lambda) for name in one.expressions}
    used = (one.parts[0].name for one in tree.find_all(sql.Column))
    return list(dict.fromkeys(name for name in used if name not in lambdas))
