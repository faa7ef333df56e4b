"""Shedding in front of real joins: accounting, what is durable when, how much of the results is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream import MasterStore, Shed, join, make_join
from semistream.errors import SheddingError
from semistream.joins import JOINS
from semistream.joins.contract import Join
from semistream.lookup.spec import How
from semistream.shedding.log import batches_in, read_part, read_rows
from semistream_lab.workloads.zipf_kernels import zipf_ranks
from tests.shedding.clocks import Clock, every
from tests.tables import assert_same_rows, model_join, table_of

KEYS = 10_000
LEAST = "2MB"


def frequencies(skew: float) -> Any:
    """Rows a key: Zipf with this exponent, key 0 the most, about ten a key on average."""
    shape = np.arange(1, KEYS + 1) ** -skew
    return np.maximum(1, np.round(10 * KEYS * shape / shape.sum())).astype(int)


def many_to_many(path: Path, skew: float) -> MasterStore:
    keys = np.repeat(np.arange(KEYS), frequencies(skew))
    shuffled = np.random.default_rng(2).permutation(keys)
    return MasterStore.build(pa.table({"id": shuffled, "value": np.arange(len(keys))}), path, key="id")


def stream(count: int, batch_rows: int = 1000, skew: float = 0.5) -> list[pa.RecordBatch]:
    ranks = np.empty(count, np.int64)
    zipf_ranks(KEYS, skew, np.uint64(11), 0, ranks)
    table = pa.table({"id": ranks - 1, "n": np.arange(count)})
    return table.to_batches(max_chunksize=batch_rows)


def shed_rows(directory: Path) -> list[pa.RecordBatch]:
    return [batch for paths in batches_in(directory).values() for path in paths for batch in read_rows(path)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    return many_to_many(tmp_path_factory.mktemp("shedding") / "half", 0.5)


def at_half_rate(made: Join, batches: list[pa.RecordBatch], clock: Clock) -> Iterator[pa.RecordBatch]:
    """The stream of λ = 2μ: a batch a second, of which the rate allows half."""
    return made.join(every(1.0, batches, clock))


def settings(strategy: str, to: Path, clock: Clock, rate: float | None = 500, seed: int = 0) -> Shed:
    return Shed(strategy, max_rows_per_second=rate, to=to, seed=seed, clock=clock)


class TestAccounting:
    @pytest.mark.parametrize("strategy", ["keep_w", "sample_w", "topw", "cluster_sample"])
    @pytest.mark.parametrize("how", ["left", "inner", "semi"])
    def test_kept_and_shed_rows_are_the_stream(
        self, store: MasterStore, tmp_path: Path, strategy: str, how: How
    ) -> None:
        clock = Clock()
        batches = stream(4000)
        shed = settings(strategy, tmp_path / "shed", clock)
        made = make_join(batches[0].schema, store, on="id", how=how, memory=LEAST, shed=shed)
        output = table_of(at_half_rate(made, batches, clock), made.plan.output)
        made.check()
        stats = made.stats
        assert (stats.rows_in, stats.shed) == (4000, 4000 - 1000 - 3 * 500)  # the first second's worth is a gift
        assert stats.rows_in == stats.matched + stats.unmatched + stats.shed
        whole = pa.Table.from_batches(batches)
        later = pa.Table.from_batches(shed_rows(tmp_path / "shed"))
        kept = whole.filter(pa.compute.invert(pa.compute.is_in(whole.column("n"), later.column("n").combine_chunks())))
        assert later.num_rows == stats.shed
        master = pa.Table.from_batches(list(store.scan()))
        names = [name for name in output.column_names if name != "_weight"]
        assert_same_rows(output.select(names), model_join(kept, master, "id", how))
        assert ("_weight" in output.column_names) == (strategy in ("sample_w", "cluster_sample"))

    @pytest.mark.parametrize("algorithm", [name for name in JOINS if name != "whole"])
    def test_every_join(self, store: MasterStore, tmp_path: Path, algorithm: str) -> None:
        clock = Clock()
        batches = stream(3000)
        shed = settings("topw", tmp_path / "shed", clock)
        made = make_join(batches[0].schema, store, on="id", memory=LEAST, algorithm=algorithm, shed=shed)
        for _ in at_half_rate(made, batches, clock):
            pass
        made.check()
        assert (made.stats.rows_in, made.stats.shed) == (3000, 1000)

    def test_several_streams_in_turn(self, store: MasterStore, tmp_path: Path) -> None:
        clock = Clock()
        batches = stream(3000)
        made = make_join(
            batches[0].schema, store, on="id", memory=LEAST, shed=settings("keep_w", tmp_path / "shed", clock)
        )
        for _ in range(2):
            list(at_half_rate(made, batches, clock))
            made.check()
        assert (made.stats.rows_in, made.stats.shed) == (6000, 2000)
        assert sorted(batches_in(tmp_path / "shed")) == [0, 1, 2, 3]

    def test_an_abandoned_stream(self, store: MasterStore, tmp_path: Path) -> None:
        clock = Clock()
        batches = stream(5000)
        shed = settings("keep_w", tmp_path / "shed", clock)
        made = make_join(batches[0].schema, store, on="id", memory="16MB", algorithm="whole", shed=shed)
        output = at_half_rate(made, batches, clock)
        while made.front is not None and made.front.count == 0:
            next(output)
        output.close()  # type: ignore[attr-defined]
        made.check()
        assert made.stats.shed == sum(batch.num_rows for batch in shed_rows(tmp_path / "shed")) > 0

    def test_nothing_is_shed_while_the_join_keeps_up(self, store: MasterStore, tmp_path: Path) -> None:
        clock = Clock()
        batches = stream(3000)
        shed = settings("topw", tmp_path / "shed", clock, rate=2000)
        output = join(every(1.0, batches, clock), store, on="id", memory=LEAST, shed=shed)
        master = pa.Table.from_batches(list(store.scan()))
        assert_same_rows(pa.Table.from_batches(output), model_join(pa.Table.from_batches(batches), master, "id"))
        assert not (tmp_path / "shed").exists()

    def test_by_the_measured_rate(self, store: MasterStore, tmp_path: Path) -> None:
        clock = Clock()

        def polls() -> Iterator[pa.RecordBatch]:
            last, number = clock.now, 0
            for _ in range(10):
                clock.now = max(clock.now, last + 1)
                count = int((clock.now - last) * 1000)
                last = clock.now
                yield pa.record_batch({"id": np.arange(count) % KEYS, "n": np.arange(number, number + count)})
                number += count

        first = pa.schema({"id": pa.int64(), "n": pa.int64()})
        shed = settings("keep_w", tmp_path / "shed", clock, rate=None)
        made = make_join(first, store, on="id", memory="64MB", how="semi", algorithm="whole", shed=shed)
        for batch in made.join(polls()):
            clock.now += batch.num_rows / 400  # who reads the results takes 400 rows a second
        made.check()
        assert made.stats.shed / made.stats.rows_in == pytest.approx(0.6, abs=0.05)


class TestDurability:
    def test_shed_rows_are_there_before_their_interval_goes_out(self, store: MasterStore, tmp_path: Path) -> None:
        clock = Clock()
        batches = stream(4000)
        shed = settings("topw", tmp_path / "shed", clock)
        seen: set[int] = set()
        arrived = 0
        for batch in join(every(1.0, batches, clock), store, on="id", algorithm="whole", memory="64MB", shed=shed):
            seen |= set(batch.column("n").to_pylist())
            arrived = max(arrived, 1000 * (max(seen) // 1000 + 1))
            later = {n for one in shed_rows(tmp_path / "shed") for n in one.column("n").to_pylist()}
            done = {n for n in seen | later if n < arrived - 1000}
            assert done == set(range(arrived - 1000))
            # Of the interval that is on its way, every row is either in the log or among those kept.
            rest = {n for n in later if n >= arrived - 1000}
            assert len(rest) == 500

    def test_files_say_what_they_are(self, store: MasterStore, tmp_path: Path) -> None:
        clock = Clock()
        batches = stream(3000)
        made = make_join(
            batches[0].schema,
            store,
            on="id",
            memory=LEAST,
            defaults={"value": 7},
            shed=settings("sample_w", tmp_path / "shed", clock),
        )
        list(at_half_rate(made, batches, clock))
        [path] = batches_in(tmp_path / "shed")[1]
        about = read_part(path)
        assert (about.batch, about.rows, about.rows_in, about.source) == (1, 500, 1000, "join")
        spec = about.spec
        assert (spec.on, spec.how, spec.columns, about.weight) == ({"id": "id"}, "left", ("value",), "_weight")
        assert about.master_version == 1
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert pq.read_table(path).column_names == ["id", "n"]  # for any reader of Parquet

    def test_damage_is_named(self, store: MasterStore, tmp_path: Path) -> None:
        clock = Clock()
        list(join(every(1.0, stream(3000), clock), store, on="id", shed=settings("keep_w", tmp_path / "s", clock)))
        [path] = batches_in(tmp_path / "s")[0]
        whole = path.read_bytes()
        chance = np.random.default_rng(4)
        rows = table_of(read_rows(path), next(read_rows(path)).schema)
        for _ in range(200):
            path.write_bytes(whole)
            assert_same_rows(table_of(read_rows(path), rows.schema), rows)
            broken = bytearray(whole)
            broken[int(chance.integers(len(whole)))] ^= int(chance.integers(1, 256))
            path.write_bytes(broken)
            for read in (read_part, lambda place: list(read_rows(place))):
                with pytest.raises(SheddingError, match=str(path)):
                    read(path)
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(SheddingError, match=str(path)):
            read_part(path)


class TestResults:
    """The paper's figure 11: stream of skew 0.5, twice as fast as the join; the hot keys of both sides are the same."""

    def retention(self, store: MasterStore, strategy: str, to: Path) -> float:
        batches = stream(10_000, 1000)
        clock = Clock()
        options: dict[str, Any] = {"on": "id", "how": "inner", "memory": "16MB"}
        whole = sum(batch.num_rows for batch in join(batches, store, **options))
        shed = settings(strategy, to, clock)
        made = make_join(batches[0].schema, store, **options, shed=shed)
        kept = sum(batch.num_rows for batch in made.join(every(1.0, batches, clock, at_once=True)))
        made.check()
        assert made.stats.shed == 5_000
        return kept / whole

    def test_topw_keeps_over_80_percent_at_twice_the_rate(self, store: MasterStore, tmp_path: Path) -> None:
        assert self.retention(store, "topw", tmp_path / "topw") > 0.8
        assert self.retention(store, "keep_w", tmp_path / "keep") < 0.6

    def test_the_more_skew_the_more_is_kept(self, tmp_path: Path) -> None:
        kept = [
            self.retention(many_to_many(tmp_path / f"r{skew}", skew), "topw", tmp_path / f"s{skew}")
            for skew in (0.1, 0.5, 1.0)
        ]
        assert kept == sorted(kept)
        assert kept[0] > 0.5

    @pytest.mark.parametrize("strategy, bound", [("sample_w", 0.05), ("cluster_sample", 0.04)])
    def test_weights_scale_sums(self, store: MasterStore, tmp_path: Path, strategy: str, bound: float) -> None:
        batches = stream(6000, 1000)
        whole = sum(
            float(pa.compute.sum(batch.column("value")).as_py())
            for batch in join(batches, store, on="id", how="inner", memory="16MB")
        )
        errors = []
        for seed in range(20):
            clock = Clock()
            shed = settings(strategy, tmp_path / f"shed{seed}", clock, rate=300, seed=seed)
            made = make_join(batches[0].schema, store, on="id", how="inner", memory="16MB", shed=shed)
            found = table_of(at_half_rate(made, batches, clock), made.plan.output)
            scaled = (found.column("value").to_numpy() * found.column("_weight").to_numpy()).sum()
            errors.append(scaled / whole - 1)
        # The mean over the seeds is closer than any one of them: no bias.
        assert np.abs(errors).max() < 3 * bound
        assert abs(np.mean(errors)) < bound

    def test_a_seed_gives_the_same_rows(self, store: MasterStore, tmp_path: Path) -> None:
        def kept(seed: int, to: str) -> list[int]:
            clock = Clock()
            shed = settings("sample_w", tmp_path / to, clock, seed=seed)
            output = join(every(1.0, stream(3000), clock), store, on="id", how="semi", memory=LEAST, shed=shed)
            return sorted(n for batch in output for n in batch.column("n").to_pylist())

        assert kept(1, "a") == kept(1, "b")
        assert kept(1, "c") != kept(2, "d")
