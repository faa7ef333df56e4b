"""A shop whose sales go into a warehouse: the pipeline under test, and a slow, plain model of the same job.

Sales arrive as files of JSON lines, one file a batch. Each is let through once (by its id), gets the price of its
product (or waits for it, if the product is not there yet), the city of its shop (or is put aside, if there is no such
shop) and the warehouse's key of its customer, who is made if unknown. Rows with no quantity are filtered; what cannot
be read is put into quarantine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream import MasterStore, Shed
from semistream.dimensions.dimension import Dimension
from semistream.pipeline import Pipeline, assign_keys, compute, deduplicate, keep, lookup, select, source
from semistream.warehouse import PostgresWarehouse
from semistream.warehouse.contract import Warehouse
from semistream.warehouse.delta_tables import DeltaWarehouse

SALE = {
    "sale_id": "bigint",
    "product": "string",
    "shop": "int",
    "customer": "string",
    "quantity": "int",
    "sold_at": "timestamp",
}
Row = dict[str, Any]
TOO_FAST = Shed("keep_w", max_rows_per_second=1)  # any stream is


def sale(number: int, **changes: Any) -> Row:
    """A sale; its product, shop and customer follow from its number."""
    row = {
        "sale_id": number,
        "product": f"p{number % 7}",
        "shop": number % 3,
        "customer": f"c{number % 5}",
        "quantity": number % 4,
        "sold_at": f"2026-01-{1 + number % 28:02d}T10:00:00.000Z",
    }
    return row | changes


class Shop:
    """Everything on disk: stores, arriving files, state, warehouse.

    Two files say what is not as usual, to other processes too: ``table`` names the table of facts, ``address`` the
    database that is the warehouse.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.table = _said(root / "table") or "sales"
        self.dimension = "customers" if self.table == "sales" else f"customers of {self.table}"
        self.incoming = root / "incoming"
        self.products = root / "stores" / "products"
        self.shops = root / "stores" / "shops"
        self.customers = root / "stores" / self.dimension

    def open(self) -> Shop:
        """Make the stores: products p0 to p4, shops 0 and 1, no customers."""
        self.incoming.mkdir(parents=True, exist_ok=True)
        MasterStore.build(products(range(5)), self.products, key="id")
        MasterStore.build(
            pa.table({"number": pa.array([0, 1], pa.int32()), "city": ["Rome", "Oslo"]}), self.shops, key="number"
        )
        Dimension.create(
            self.customers,
            key=pa.schema({"customer": pa.string()}),
            attributes=pa.schema({"name": pa.string()}),
            surrogate="customer_sk",
        )
        return self

    def arrive(self, number: int, rows: list[Row | str]) -> None:
        """A file of sales; a text is a line as it is."""
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        draft = self.incoming / f".{number:04d}"
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
        draft.rename(self.incoming / f"{number:04d}.json")

    def warehouse(self) -> Warehouse:
        """Where the rows go."""
        if address := _said(self.root / "address"):
            return PostgresWarehouse(address, staging=self.root / "state" / "staging", schema=self.root.name)
        return DeltaWarehouse(self.root / "warehouse")

    def pipeline(self, sink: Warehouse | None = None, **changes: Any) -> Pipeline:
        """The way of a sale."""
        settings: dict[str, Any] = {"max_bad_rate": 0.5, "memory": "64MB"} | changes
        return Pipeline(
            source("json", self.incoming, schema=SALE, maxFilesPerTrigger=1),
            [
                deduplicate("sale_id"),
                lookup(self.products, on={"product": "id"}, columns=["price"], on_miss="hold", hold_for="1 hour"),
                lookup(self.shops, on={"shop": "number"}, on_miss="redirect"),
                keep("quantity > 0"),
                compute(revenue="quantity * price"),
                assign_keys(self.customers, on="customer", infer_members=True),
                select("sale_id", "product", "city", "customer_sk", "quantity", "revenue", "sold_at"),
            ],
            sink or self.warehouse(),
            table=self.table,
            state=self.root / "state",
            **settings,
        )


def _said(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def products(numbers: Any, price: float = 1.0) -> pa.Table:
    """Rows of the products' master."""
    return pa.table({"id": [f"p{n}" for n in numbers], "price": [price * (n + 1) for n in numbers]})


@dataclass
class Model:
    """The same job in plain Python, a row at a time."""

    prices: dict[str, float] = field(default_factory=lambda: {f"p{n}": float(n + 1) for n in range(5)})
    cities: dict[int, str] = field(default_factory=lambda: {0: "Rome", 1: "Oslo"})
    members: dict[str, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    facts: list[Row] = field(default_factory=list)
    held: list[Row] = field(default_factory=list)
    unmatched: list[Row] = field(default_factory=list)
    quarantined: int = 0
    duplicates: int = 0
    filtered: int = 0
    rows_in: int = 0

    def batch(self, rows: list[Row | str]) -> None:
        """One file, and the held rows whose product has arrived."""
        released = [row for row in self.held if row["product"] in self.prices]
        self.held = [row for row in self.held if row["product"] not in self.prices]
        self.rows_in += len(rows)
        here: set[int] = set()
        loaded: list[Row] = []
        good = []
        for row in rows:
            if isinstance(row, str) or row["sale_id"] is None:
                self.quarantined += 1
            else:
                good.append(row)
        for row in [*released, *good]:
            if row["sale_id"] in self.seen or row["sale_id"] in here:
                self.duplicates += 1
                continue
            here.add(row["sale_id"])
            if row["shop"] not in self.cities:  # the stricter of the two comes first
                self.unmatched.append(row)
            elif row["product"] not in self.prices:
                self.held.append(row)
            elif row["quantity"] <= 0:
                self.filtered += 1
            else:
                loaded.append(row)
        for customer in sorted({row["customer"] for row in loaded if row["customer"] is not None} - set(self.members)):
            self.members[customer] = len(self.members) + 1
        for row in loaded:
            self.seen.add(row["sale_id"])
            self.facts.append(
                {
                    "sale_id": row["sale_id"],
                    "product": row["product"],
                    "city": self.cities[row["shop"]],
                    "customer_sk": self.members.get(row["customer"], -1),
                    "quantity": row["quantity"],
                    "revenue": row["quantity"] * self.prices[row["product"]],
                }
            )

    def agrees(
        self, warehouse: Warehouse, totals: dict[str, int], table: str = "sales", dimension: str = "customers"
    ) -> None:
        """The warehouse and the accounting are as the model's."""
        found = warehouse.read(table).drop_columns(["sold_at"]).to_pylist()
        assert sorted(map(repr, found)) == sorted(map(repr, self.facts))
        aside = [row["sale_id"] for row in warehouse.read(f"{table}_unmatched").to_pylist()]
        assert sorted(aside) == sorted(row["sale_id"] for row in self.unmatched)
        assert warehouse.read(f"{table}_quarantine").num_rows == self.quarantined
        members = {row["customer"]: row["customer_sk"] for row in warehouse.read(dimension).to_pylist()}
        assert {name: key for name, key in members.items() if key > 0} == self.members
        assert {name: totals[name] for name in totals if name not in ("released", "retried", "reconciled")} == {
            "shed": 0,  # or reconciled
            "rows_in": self.rows_in,
            "enriched": len(self.facts),
            "unmatched": len(self.unmatched),
            "held": len(self.held),
            "quarantined": self.quarantined,
            "duplicates": self.duplicates,
            "filtered": self.filtered,
        }
