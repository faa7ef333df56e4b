"""Waiting rows are met share by share: every row in one share, a key's rows together, and little memory for each."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from semistream.joins.groups import Waiting
from semistream.joins.sizes import SHARE_BYTES
from semistream.joins.window import SHARES, Share, shares_of
from semistream.keys import Codes

HIGHEST = np.iinfo(np.uint64).max


def some_codes(kind: str, rows: int, seed: int = 1) -> Codes:
    chooser = np.random.default_rng(seed)
    if kind == "uniform":
        return chooser.integers(0, 1 << 63, rows).astype(np.uint64)
    if kind == "few":
        return chooser.integers(0, 5, rows).astype(np.uint64)
    if kind == "one":
        return np.full(rows, HIGHEST, np.uint64)
    if kind == "edges":
        return np.array([0, 1, HIGHEST - np.uint64(1), HIGHEST], np.uint64)[chooser.integers(0, 4, rows)]
    hot = chooser.random(rows) < 0.6  # one key has most of the rows
    return np.where(hot, np.uint64(12345), chooser.integers(0, 1 << 63, rows).astype(np.uint64))


KINDS = ("uniform", "few", "one", "edges", "hot")


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("rows", [0, 1, 17, 5_000])
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_in_one_share(kind: str, rows: int, lanes: int) -> None:
    codes = some_codes(kind, rows)
    shares = shares_of(codes, lanes, 100)
    assert [share.high for share in shares[:-1]] == [share.low for share in shares[1:]]
    met = [np.arange(rows) if (mine := share.rows(codes)) is None else mine for share in shares]
    assert sorted(itertools.chain.from_iterable(met)) == list(range(rows))
    for share, mine in zip(shares, met, strict=True):
        if share.one_code:
            assert len(np.unique(codes[mine])) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_takes_little_memory(kind: str) -> None:
    """Beside flags for all rows and the search for a share's, what it takes is within what each row is charged."""
    rows = 200_000
    codes = some_codes(kind, rows)
    stream, matched = pa.record_batch({"key": codes}), np.zeros(rows, np.bool_)
    shares = shares_of(codes, 1, rows // SHARES)
    for share in shares:  # compiled before it is measured
        Waiting(stream, codes, share.rows(codes), matched, one_code=share.one_code)
    tracemalloc.start()
    for share in shares:
        waiting = Waiting(stream, codes, share.rows(codes), matched, one_code=share.one_code)
        del waiting
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= (SHARE_BYTES - 1) * rows


def test_the_only_share_has_all_rows() -> None:
    assert Share().rows(some_codes("uniform", 10)) is None
    assert len(shares_of(some_codes("uniform", 50), 1, 100)) == 1
