"""The verifier, a process of its own: replays the history of a shop by the model and compares. Exit code 1: wrong.

It takes from the ledger only which files and which version of the products each batch read; everything else is computed
again, in plain Python, from the files that arrived. Usage: verify.py ROOT
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from semistream import MasterStore
from semistream.pipeline.decision import Decision
from semistream.pipeline.ledger import Ledger
from semistream.pipeline.sources import files_of
from tests.pipeline.shop import Model, Row, Shop


def parsed(line: str) -> Row | str:
    """A sale as the source must read it, or the line itself if it cannot."""
    try:
        row = json.loads(line)
    except ValueError:
        return line
    return row if isinstance(row, dict) and not isinstance(row.get("sale_id"), str) else line


def history(shop: Shop) -> list[tuple[Decision, list[Row | str]]]:
    """Every decision in its order, with the rows that came for it."""
    ledger = Ledger(shop.root / "state", shop.table)
    found = []
    for kind in ("batches", "side"):
        for number in range((ledger.last(kind) if ledger.last(kind) is not None else -1) + 1):  # type: ignore[operator]
            decision = ledger.decided(kind, number)
            assert decision is not None, f"{kind} {number} is missing in the ledger"
            rows: list[Row | str] = []
            if kind == "batches":
                for file in files_of(shop.root / "state" / "checkpoint", number):
                    rows += [parsed(line) for line in (shop.incoming / Path(file).name).read_text().splitlines()]
            found.append((decision, rows))
    return sorted(found, key=lambda item: item[0].sequence)


def verify(shop: Shop) -> None:
    """Raise when warehouse, ledger and model differ."""
    model = Model()
    decisions = history(shop)
    for decision, rows in decisions:
        store = MasterStore.open(shop.products, decision.masters["products"])
        prices = {row["id"]: row["price"] for batch in store.scan() for row in batch.to_pylist()}
        model.prices = prices
        model.batch(rows)
    arrived = sum(len(path.read_text().splitlines()) for path in shop.incoming.glob("*.json"))
    assert model.rows_in == arrived, f"{arrived} rows arrived, {model.rows_in} were read"
    model.agrees(shop.warehouse(), decisions[-1][0].totals, shop.table, shop.dimension)


if __name__ == "__main__":
    try:
        verify(Shop(Path(sys.argv[1])))
    except AssertionError as error:
        print(f"WRONG: {error}", flush=True)
        os._exit(1)
    print("right", flush=True)
    os._exit(0)  # at once: threads that Arrow has left reading now and then abort a Python that ends in order
