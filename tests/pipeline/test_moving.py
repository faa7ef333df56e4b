"""A state that is used from another directory, moved, copied, restored: it works, or it is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semistream import MasterStore
from semistream.durable import checksum
from semistream.errors import StateError
from semistream.pipeline import Decision, source
from semistream.pipeline.ledger import Ledger
from semistream.warehouse import StaleWriterError
from tests.pipeline.shop import SALE, Model, Row, Shop, products, sale

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def load(shop: Shop, spark: SparkSession, state: Path | None = None) -> Decision:
    pipeline = shop.pipeline()
    pipeline.state = state or pipeline.state
    done = pipeline.run(spark, once=True)
    assert done is not None
    return done


def held_by(shop: Shop, model: Model) -> None:
    """Sales of which some wait for products p5 and p6."""
    rows: list[Row | str] = [sale(n) for n in range(21)]
    shop.arrive(0, rows)
    model.batch(rows)


def p5_arrives(shop: Shop, model: Model) -> None:
    MasterStore.open(shop.products).upsert(products([5]))
    model.prices["p5"] = 6.0


def test_from_another_directory(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun where its paths are relative, gone on with from elsewhere."""
    monkeypatch.chdir(tmp_path)
    shop, model = Shop(Path("shop")).open(), Model()
    held_by(shop, model)
    load(shop, spark)
    p5_arrives(shop, model)
    monkeypatch.chdir("/")
    shop = Shop(tmp_path / "shop")
    rows: list[Row | str] = [sale(40), sale(41)]
    shop.arrive(1, rows)
    model.batch(rows)
    model.agrees(shop.warehouse(), load(shop, spark).totals)


def test_moved(shop: Shop, spark: SparkSession) -> None:
    """Renamed, and copied with the original removed, as a move to another disk is."""
    model = Model()
    held_by(shop, model)
    load(shop, spark)
    renamed, elsewhere = shop.root / "renamed", shop.root / "elsewhere"
    (shop.root / "state").rename(renamed)
    p5_arrives(shop, model)
    model.batch([])
    model.agrees(shop.warehouse(), load(shop, spark, renamed).totals)
    shutil.copytree(renamed, elsewhere)
    shutil.rmtree(renamed)
    MasterStore.open(shop.products).upsert(products([6]))
    model.prices["p6"] = 7.0
    model.batch([])
    model.agrees(shop.warehouse(), load(shop, spark, elsewhere).totals)


def test_a_copy(shop: Shop, spark: SparkSession) -> None:
    """Refused while the original is there; then, whichever goes on first, the other one is refused."""
    model = Model()
    held_by(shop, model)
    load(shop, spark)
    original, copy, aside = shop.root / "state", shop.root / "copy", shop.root / "aside"
    shutil.copytree(original, copy)
    before = contents(original)
    with pytest.raises(StateError, match=rf"{copy} is a copy of the state {original}, which is still there"):
        load(shop, spark, copy)
    assert contents(original) == before
    original.rename(aside)
    p5_arrives(shop, model)
    rows: list[Row | str] = [sale(40), sale(41)]
    shop.arrive(1, rows)
    model.batch(rows)
    model.agrees(shop.warehouse(), load(shop, spark, copy).totals)
    assert contents(aside) == before
    with pytest.raises(StaleWriterError, match="another copy of the state has gone on with it"):
        load(shop, spark, aside)
    assert Ledger(aside, "sales").last("batches") == 0  # nothing is decided that cannot be carried out
    model.agrees(shop.warehouse(), load(shop, spark, copy).totals)


def test_everything_is_moved(shop: Shop, spark: SparkSession) -> None:
    """Spark knows the files that it has read by their whole path."""
    model = Model()
    held_by(shop, model)
    load(shop, spark)
    moved = Shop(shop.root.rename(shop.root.with_name(f"{shop.root.name}-moved")))
    p5_arrives(moved, model)
    rows: list[Row | str] = [sale(40), sale(41)]
    moved.arrive(1, rows)
    with pytest.raises(StateError, match=r"is not the directory that was read so far: .*0000\.json was loaded"):
        load(moved, spark)
    model.batch(rows)
    shop.root.mkdir()
    shop.incoming.symlink_to(moved.incoming)
    pipeline = moved.pipeline()
    pipeline.source = source("json", shop.incoming, schema=SALE)
    done = pipeline.run(spark, once=True)
    assert done is not None
    model.agrees(moved.warehouse(), done.totals)


def test_restored_in_its_place(shop: Shop) -> None:
    state, backup = shop.root / "state", shop.root / "backup"
    ledger = Ledger(state, "sales")
    ledger.open()
    ledger.close()
    shutil.copytree(state, backup)
    shutil.rmtree(state)
    shutil.copytree(backup, state)
    ledger.open()
    ledger.close()
    with pytest.raises(StateError, match="is a copy of the state"):
        Ledger(backup, "sales").open()


def test_a_link_is_no_copy(shop: Shop) -> None:
    state, link = shop.root / "state", shop.root / "link"
    for place in (state, link, state):
        if place == link:
            link.symlink_to(state)
        ledger = Ledger(place, "sales")
        ledger.open()
        ledger.close()


def test_decisions_of_before(shop: Shop, spark: SparkSession) -> None:
    """They have whole paths, of a directory that is another state's now: its files are not touched."""
    model = Model()
    held_by(shop, model)
    load(shop, spark)
    state, former = shop.root / "state", shop.root / "former"
    (path,) = (state / "batches").glob("*.json")
    content = json.loads(path.read_text())
    content.pop("crc32")
    for part in content["decision"]["held"]:
        part["path"] = str(former / "held" / Path(part["path"]).name)
    content["decision"]["seen"] = [str(former / "held" / Path(name).name) for name in content["decision"]["seen"]]
    content["decision"].pop("stores", None)
    path.write_text(json.dumps({**content, "crc32": checksum(content)}))
    shutil.copytree(state / "held", former / "held")
    before = contents(former)
    p5_arrives(shop, model)
    model.batch([])
    model.agrees(shop.warehouse(), load(shop, spark).totals)
    assert contents(former) == before


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
