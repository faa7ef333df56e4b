"""The ledger on its own: decisions are made once, by one driver, and damage is never taken for content."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semistream.durable import rewrite
from semistream.errors import SemistreamError, StateError
from semistream.pipeline import ledger as module
from semistream.pipeline.decision import COUNTS, Decision, HeldFile, Read
from semistream.pipeline.ledger import Ledger
from semistream.warehouse import ForeignCheckpointError, MissingBatchesError, StaleWriterError
from semistream.warehouse.contract import BatchWrites, StagedFile, Write

QUERY = "0b7f61f3-d9f5-4942-945a-e7a65429d651"
OTHER = "7c1de9a0-52f6-4f6b-8f0e-3f6d2d0c9b11"
SCHEMA = pa.schema({"id": pa.int64()})


def decision(
    number: int, *, sequence: int | None = None, query: str = QUERY, held: Path = Path("/held"), **changes: Any
) -> Decision:
    files = (StagedFile(f"part-{number}.parquet", 3, 1000 + number),)
    body: dict[str, Any] = {
        "writes": BatchWrites("sales", query, number, (Write("sales", files, SCHEMA),)),
        "masters": {"products": 4},
        "counts": dict.fromkeys(COUNTS, number),
        "lookups": {"products": {"matched": 3, "unmatched": 1}},
        "totals": dict.fromkeys(COUNTS, 10 * number),
        "held": (HeldFile("products", str(held / f"{number}.parquet"), 2, 900, 17.25),),
        "seen": (str(held / f"keys-{number}.parquet"),),
        "dimensions": {"customers": 2},
        "seconds": 0.125,
        "decided_at": 1_700_000_000.5,
        "sequence": number if sequence is None else sequence,
    }
    return Decision(**(body | changes))


def placed(there: Ledger, one: Decision) -> Decision:
    """The decision with its files where the ledger has them, whatever directory they were decided in."""
    held = tuple(replace(part, path=str(there.root / "held" / Path(part.path).name)) for part in one.held)
    return replace(one, held=held, seen=tuple(str(there.root / "held" / Path(path).name) for path in one.seen))


def reads(**numbers: int) -> dict[str, Read]:
    return {name: Read(f"store of {name}", number, 1000 + number) for name, number in numbers.items()}


def rewritten(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """A file of the state as another version of semistream wrote it."""
    body = json.loads(path.read_text())
    del body["crc32"]
    change(body)
    rewrite(path, body)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "state", "sales")
    made.open()
    return made


class TestDecisions:
    def test_are_read_as_they_were_written(self, ledger: Ledger) -> None:
        assert ledger.newest() is None
        for number in range(3):
            ledger.decide("batches", number, decision(number))
        again = Ledger(ledger.root, "sales")
        assert again.decided("batches", 1) == placed(ledger, decision(1))
        assert again.decided("batches", 7) is None
        assert (again.last("batches"), again.last("side"), again.next("side")) == (2, None, 0)
        assert again.newest() == placed(ledger, decision(2))

    def test_the_newest_is_the_one_made_last_whatever_its_kind(self, ledger: Ledger) -> None:
        ledger.decide("batches", 0, decision(0, sequence=0))
        ledger.decide("side", 0, decision(0, sequence=1))
        assert ledger.newest() == placed(ledger, decision(0, sequence=1))
        ledger.decide("batches", 1, decision(1, sequence=2))
        assert ledger.newest() == placed(ledger, decision(1, sequence=2))
        assert ledger.latest() == [placed(ledger, one) for one in (decision(0, sequence=1), decision(1, sequence=2))]

    def test_two_drivers_cannot_decide_the_same_batch(self, ledger: Ledger) -> None:
        other = Ledger(ledger.root, "sales")
        ledger.decide("batches", 0, decision(0))
        with pytest.raises(StaleWriterError, match="written by another driver while batch 0"):
            other.decide("batches", 0, decision(0, seconds=9.0))
        assert other.decided("batches", 0) == placed(ledger, decision(0))

    def test_a_driver_that_was_overtaken_stops(self, ledger: Ledger) -> None:
        other = Ledger(ledger.root, "sales")
        ledger.decide("batches", 0, decision(0))
        for number in (1, 2):
            other.decide("batches", number, decision(number))
        with pytest.raises(StaleWriterError, match="decided batch 0 last, and batch 2 is there"):
            ledger.check_not_moved("batches", 1)

    def test_batches_come_one_after_the_other(self, ledger: Ledger) -> None:
        with pytest.raises(MissingBatchesError, match=r"knows of no batch, but .* at batch 3"):
            ledger.check_not_moved("batches", 3)
        ledger.check_not_moved("batches", 0)
        ledger.decide("batches", 0, decision(0))
        ledger.check_not_moved("batches", 1)
        with pytest.raises(MissingBatchesError, match=r"ends with batch 0, but .* at batch 2"):
            ledger.check_not_moved("batches", 2)

    def test_only_the_last_are_kept_and_older_ones_are_refused(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "KEPT", 20)
        for number in range(25):
            ledger.pin("batches", number, reads(products=number))
            ledger.check_input(number, f"files {number}")
            ledger.decide("batches", number, decision(number))
        for part in ("batches", "pins"):
            assert len(list((ledger.root / part).glob("0*.json"))) == 20
        assert len(list((ledger.root / "pins").glob("input*.json"))) == 20
        again = Ledger(ledger.root, "sales")
        assert again.decided("batches", 2) is None
        with pytest.raises(StateError, match=r"batch 2 .* comes again, although batch 24 is decided"):
            again.check_not_moved("batches", 2)

    def test_one_that_was_renamed(self, ledger: Ledger) -> None:
        ledger.decide("batches", 0, decision(0))
        (ledger.root / "batches" / "000000000.json").rename(ledger.root / "batches" / "000000001.json")
        with pytest.raises(StateError, match=r"000000001.json is the decision on batch 0"):
            ledger.newest()

    def test_of_before_digests_were_kept(self, ledger: Ledger) -> None:
        ledger.decide("batches", 0, decision(0, stores={"products": "a"}))
        path = ledger.path("batches", 0)
        rewritten(path, lambda body: [body["decision"].pop(name) for name in ("digests", "dimension_digests")])
        [found] = ledger.latest()
        assert found.read == {"products": Read("a", 4)}


class TestPins:
    def test_of_before_digests_were_kept(self, ledger: Ledger) -> None:
        ledger.pin("batches", 3, reads(products=4))
        path = ledger.path("pins", 3)
        rewritten(path, lambda body: body.pop("digests"))
        assert ledger.pin("batches", 3, reads(products=9)) == {"products": Read("store of products", 4)}

    def test_the_first_counts(self, ledger: Ledger) -> None:
        assert ledger.pin("batches", 3, reads(products=4, shops=1)) == reads(products=4, shops=1)
        again = Ledger(ledger.root, "sales")
        assert again.pin("batches", 3, reads(products=9, shops=2)) == reads(products=4, shops=1)
        assert again.pin("batches", 3, reads(shops=2)) == reads(shops=1)
        with pytest.raises(StateError, match=r"000000003.json has no version of 'people'"):
            again.pin("batches", 3, reads(products=9, people=1))

    def test_a_batch_that_failed_for_its_master_reads_the_new_one(self, ledger: Ledger) -> None:
        ledger.pin("batches", 3, reads(products=4))
        ledger.unpin("batches", 3)
        assert ledger.pin("batches", 3, reads(products=5)) == reads(products=5)

    def test_work_beside_batches_reads_what_is_there(self, ledger: Ledger) -> None:
        for version in (4, 5):
            assert ledger.pin("side", 0, reads(products=version)) == reads(products=version)

    def test_a_number_stands_for_the_same_input(self, ledger: Ledger) -> None:
        for _ in range(2):
            ledger.check_input(0, "some files")
        with pytest.raises(StateError, match="batch 0 of 'sales' reads other input"):
            ledger.check_input(0, "other files")


class TestOwnership:
    def test_one_driver_at_a_time(self, ledger: Ledger) -> None:
        other = Ledger(ledger.root, "sales")
        with pytest.raises(StaleWriterError, match="another driver works with"):
            other.open()
        ledger.close()
        other.open()
        other.close()

    def test_a_state_has_one_pipeline(self, ledger: Ledger) -> None:
        ledger.owned_by(QUERY)
        with pytest.raises(ForeignCheckpointError, match="is the state of pipeline 'sales', not of 'returns'"):
            Ledger(ledger.root, "returns").owned_by(QUERY)

    def test_a_query_that_decided_nothing_leaves_nothing_behind(self, ledger: Ledger) -> None:
        ledger.owned_by(QUERY)
        ledger.pin("batches", 0, reads(products=1))
        ledger.check_input(0, "some files")
        ledger.owned_by(OTHER)
        assert ledger.owner == OTHER
        assert ledger.pin("batches", 0, reads(products=2)) == reads(products=2)
        ledger.check_input(0, "other files")

    @pytest.mark.parametrize("replaces", [None, OTHER, "f" * 15])
    def test_a_foreign_checkpoint(self, ledger: Ledger, replaces: str | None) -> None:
        ledger.owned_by(QUERY)
        ledger.decide("batches", 0, decision(0))
        with pytest.raises(ForeignCheckpointError, match=f"--replaces {QUERY}"):
            ledger.owned_by(OTHER, replaces=replaces)
        assert ledger.owner == QUERY

    def test_replaced(self, ledger: Ledger) -> None:
        """Numbers begin again, and what is held stays held."""
        ledger.owned_by(QUERY)
        ledger.pin("batches", 0, reads(products=1))
        ledger.check_input(0, "some files")
        ledger.decide("batches", 0, decision(0))
        ledger.decide("side", 0, decision(0, sequence=1))
        ledger.owned_by(OTHER, replaces=QUERY)
        assert ledger.owner == OTHER
        assert (ledger.last("batches"), ledger.next("side"), ledger.latest()) == (None, 0, [])
        assert ledger.newest() == placed(ledger, decision(0, sequence=1))
        ledger.check_not_moved("batches", 0)
        ledger.check_input(0, "other files")
        assert ledger.pin("batches", 0, reads(products=7)) == reads(products=7)
        ledger.decide("batches", 0, decision(0, sequence=2, query=OTHER))
        assert ledger.newest() == placed(ledger, decision(0, sequence=2, query=OTHER))
        ledger.owned_by(OTHER, replaces=QUERY)  # said again at the next start
        assert ledger.newest() == placed(ledger, decision(0, sequence=2, query=OTHER))

    @pytest.mark.parametrize("moved", [["batches"], ["batches", "side"], ["batches", "side", "pins"]])
    def test_killed_while_it_is_replaced(self, ledger: Ledger, moved: list[str]) -> None:
        ledger.owned_by(QUERY)
        ledger.pin("batches", 0, reads(products=1))
        ledger.decide("batches", 0, decision(0))
        ledger.decide("side", 0, decision(0, sequence=1))
        ledger.close()
        (ledger.root / "former" / QUERY).mkdir(parents=True)
        for part in moved:
            (ledger.root / part).rename(ledger.root / "former" / QUERY / part)
        again = Ledger(ledger.root, "sales")
        again.open()
        again.owned_by(OTHER, replaces=QUERY)
        assert again.owner == OTHER
        assert (again.last("batches"), again.next("side")) == (None, 0)
        assert again.newest() == placed(ledger, decision(0, sequence=1))
        assert again.pin("batches", 0, reads(products=7)) == reads(products=7)


def test_two_hundred_mutations(tmp_path: Path) -> None:
    """A bit flipped, a byte lost, the end cut off: an error that names the file, or the right content."""
    whole = Ledger(tmp_path / "state", "sales")
    whole.open()
    whole.owned_by(QUERY)
    for number in range(2):
        whole.pin("batches", number, reads(products=number, shops=1))
        whole.check_input(number, f"files {number}")
        whole.decide("batches", number, decision(number))
    whole.decide("side", 0, decision(0, sequence=2))
    whole.close()
    kept = whole.root.rename(tmp_path / "kept")  # so that its copies may go on
    files = sorted(path.relative_to(kept) for path in kept.rglob("*.json"))
    assert len(files) == 9

    def content(root: Path) -> list[Any]:
        there = Ledger(root, "sales")
        there.open()
        there.close()
        for number in range(2):
            there.check_input(number, f"files {number}")
        decisions = [*(there.decided("batches", number) for number in range(2)), there.decided("side", 0)]
        return [
            there.owner,
            *(one and one.to_json() for one in (*decisions, there.newest())),
            *(there.pin("batches", number, reads(products=number, shops=1)) for number in range(2)),
        ]

    copy = tmp_path / "copy"
    shutil.copytree(kept, copy)
    right = content(copy)
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    errors = 0
    for trial in range(200):
        shutil.rmtree(copy)
        shutil.copytree(kept, copy)
        path = copy / files[trial % len(files)]
        data = bytearray(path.read_bytes())
        place = chance.randrange(len(data))
        kind = chance.choice(["flip", "cut", "lose", "double"])
        if kind == "flip":
            data[place] ^= 1 << chance.randrange(8)
        elif kind == "cut":
            del data[place:]
        elif kind == "lose":
            del data[place]
        else:
            data.insert(place, data[place])
        path.write_bytes(data)
        said = ""
        try:
            found = content(copy)
        except SemistreamError as error:
            found, said = right, str(error)
            errors += 1
        assert found == right, f"seed {seed}, trial {trial}: {kind} at {place} of {path}"
        assert not said or str(path) in said, f"seed {seed}, trial {trial}: {said}"
    assert errors > 150
    assert json.loads((kept / "owner.json").read_text())["query"] == QUERY
