"""What only PostgreSQL can meet: passwords, lost connections, locks, names, types and values that it does not take."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from semistream.errors import ArgumentError, SchemaError, SemistreamError
from semistream.warehouse import MissingBatchesError, PostgresWarehouse, SinkError, StaleWriterError
from semistream.warehouse import postgres_session as _postgres_session
from tests.tables import assert_same_rows
from tests.warehouse.postgres_server import PASSWORD
from tests.warehouse.warehouses import QUERY, SALES, Place, batch_of, lost, model, prepared, sales


@pytest.fixture
def place(tmp_path: Path, postgres: str) -> Place:
    return Place("postgres", str(tmp_path / "staging"), postgres)


def run(place: Place, statement: str, table: str = "sales") -> Any:
    """A statement of the database's owner, beside the warehouse."""
    with psycopg.connect(place.address, autocommit=True) as connection:
        cursor = connection.execute(sql.SQL(statement).format(table=sql.Identifier(place.name, table)))
        return cursor.fetchall() if cursor.description else None


def staged(warehouse: Any) -> list[Path]:
    return [path for path in warehouse.staging.rglob("*") if path.is_file()]


def test_staged_files_go_once_they_are_in(place: Place) -> None:
    warehouse = prepared(place)
    batch = batch_of(warehouse, 0)
    assert len(staged(warehouse)) == 2
    warehouse.commit(batch)
    assert staged(warehouse) == []
    batch_of(warehouse, 0)
    left = len(staged(warehouse))
    place.killed("warehouse.committed", {"commit": (again := batch_of(warehouse, 1)).to_json()})
    place.open().commit(again)  # killed before it could delete them; the replay does
    assert len(staged(warehouse)) == left


class TestSecrets:
    def test_the_password_is_never_shown(
        self, place: Place, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        caplog.set_level(logging.DEBUG)
        shown: list[str] = []

        def see(action: Callable[[], Any]) -> None:
            with pytest.raises(SemistreamError) as caught:
                action()
            shown.extend(traceback.format_exception(caught.value))

        warehouse = prepared(place)
        warehouse.commit(batch_of(warehouse, 0))
        shown += [repr(warehouse), str(warehouse), warehouse.describe(), repr(vars(warehouse))]
        parts: dict[str, Any] = conninfo_to_dict(place.address)
        url = f"postgresql://u:{quote(PASSWORD, safe='')}@127.0.0.1:1/shop"
        for address in (
            make_conninfo(**{**parts, "host": "127.0.0.1", "port": "1"}),
            make_conninfo(**{**parts, "dbname": "nowhere"}),
            make_conninfo(**{**parts, "user": "nobody else"}),
            url,
        ):
            bad = PostgresWarehouse(address, staging=tmp_path, connect_tries=2)
            shown.append(repr(bad))
            see(partial(bad.check, "shop", QUERY))
        for address in (
            f"host=x password={PASSWORD} dbname",
            f"password='{PASSWORD}",
            f"nonsense={PASSWORD}",
            f"postgresql://u:{PASSWORD}@host:port:port/x?{PASSWORD}",
        ):
            see(partial(PostgresWarehouse, address, staging=tmp_path))
        see(lambda: warehouse.read("nowhere"))
        run(place, "DROP TABLE {table}")
        see(lambda: warehouse.commit(batch_of(warehouse, 1)))
        shown += [caplog.text, *capfd.readouterr()]
        text = "\n".join(shown)
        assert "127.0.0.1:1" in text
        for secret in (PASSWORD, quote(PASSWORD), quote(PASSWORD, safe=""), "canary", "Päss"):
            assert secret not in text

    @pytest.mark.parametrize("shown", [PASSWORD, quote(PASSWORD), quote(PASSWORD, safe="")])
    def test_an_error_that_would_show_it(self, postgres: str, shown: str) -> None:
        """None of libpq's does so far; should one, it is covered and not chained."""
        server, error = _postgres_session.Server(postgres, 1), ValueError(f"bad {shown} here")
        assert server._said(error) == "bad *** here"
        assert server._clean(error) is None

    def test_the_error_names_host_and_database(self, tmp_path: Path) -> None:
        warehouse = PostgresWarehouse("host=127.0.0.1 port=1 dbname=shop user=etl", staging=tmp_path, connect_tries=2)
        with pytest.raises(
            SinkError, match=r"no connection to database 'shop' on 127.0.0.1:1 as etl after 2 attempts: "
        ):
            warehouse.prepare("sales", SALES)


class TestFaults:
    def test_the_connection_is_lost_in_a_batch(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        warehouse = prepared(place)
        warehouse.commit(batch_of(warehouse, 0))
        batch = batch_of(warehouse, 1)
        set_marks = _postgres_session.Session.set_marks

        def cut(session: Any, *arguments: Any) -> None:
            pid = session.run("SELECT pg_backend_pid()").fetchone()[0]
            run(place, f"SELECT pg_terminate_backend({pid})")
            set_marks(session, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(_postgres_session.Session, "set_marks", cut)
            with pytest.raises(SinkError, match=r"database 'postgres' on .*: the connection was lost"):
                warehouse.commit(batch)
        assert_same_rows(warehouse.read("sales"), model(0)["sales"])
        assert warehouse.commit(batch)
        assert_same_rows(warehouse.read("sales"), model(0, 1)["sales"])

    def test_another_run_commits_while_this_one_waits(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        warehouse = prepared(place)
        twice = [batch_of(warehouse, 0), batch_of(warehouse, 0)]
        lock = _postgres_session.Session.lock

        def late(session: Any, name: str) -> None:
            if len(twice) == 1:
                assert place.open().commit(twice.pop())
            lock(session, name)

        monkeypatch.setattr(_postgres_session.Session, "lock", late)
        with pytest.raises(StaleWriterError, match="another run wrote to the table while batch 0"):
            warehouse.commit(twice.pop())
        assert_same_rows(warehouse.read("sales"), sales(0))

    def test_another_run_mirrors_while_this_one_waits(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = pa.table({"code": [1], "name": ["one"]})
        lock, others = _postgres_session.Session.lock, [1]

        def late(session: Any, name: str) -> None:
            if "mirror" in name and others:
                others.pop()
                assert place.open().mirror("product", ["code"], rows, 1)
            lock(session, name)

        monkeypatch.setattr(_postgres_session.Session, "lock", late)
        with pytest.raises(StaleWriterError, match="another run mirrored version 1"):
            place.open().mirror("product", ["code"], rows, 1)
        assert_same_rows(place.open().read("product"), rows)

    def test_another_run_holds_the_lock(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_postgres_session, "_LOCK_SECONDS", 1)
        warehouse = prepared(place)
        server: Any = warehouse
        with server._server.transaction() as session:
            session.lock("shop")
            with pytest.raises(SinkError, match="for 1 s another run has held"):
                place.open().commit(batch_of(warehouse, 0))
        assert warehouse.commit(batch_of(warehouse, 0))

    def test_a_value_that_postgresql_cannot_keep(self, place: Place) -> None:
        warehouse = prepared(place)
        rows = pa.table({"sale_id": [1, 2], "reason": ["fine", "a\0b"]})
        with pytest.raises(SinkError, match=r"0x00 \(COPY lost, line \d"):
            warehouse.commit(batch_of(warehouse, 0, {"sales": sales(0), "lost": rows}))
        assert warehouse.read("sales").num_rows == 0

    def test_a_table_that_was_dropped(self, place: Place) -> None:
        warehouse = prepared(place)
        warehouse.commit(batch_of(warehouse, 0))
        run(place, "DROP TABLE {table}")
        with pytest.raises(MissingBatchesError, match=r"table 'sales' .* is gone: batch 0 of 'shop'"):
            prepared(place)
        with pytest.raises(SinkError, match="prepare"):
            place.open().commit(batch_of(warehouse, 1))

    def test_a_mirrored_table_that_was_dropped(self, place: Place) -> None:
        warehouse = place.open()
        rows = pa.table({"code": [1], "name": ["one"]})
        warehouse.mirror("product", ["code"], rows, 3)
        run(place, "DROP TABLE {table}", "product")
        assert warehouse.mirrored("product") == -1
        warehouse.mirror("product", ["code"], rows, 3)
        assert_same_rows(warehouse.read("product"), rows)

    def test_no_server_and_wrong_arguments(self, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="connect_tries=0"):
            PostgresWarehouse("host=x", staging=tmp_path, connect_tries=0)
        for name in ("", "x" * 64, "ü" * 32, "a\0b", 7):
            with pytest.raises(ArgumentError, match="schema="):
                PostgresWarehouse("host=x", staging=tmp_path, schema=name)  # type: ignore[arg-type]


class TestTables:
    def test_long_names_are_refused_and_never_cut(self, place: Place) -> None:
        warehouse = place.open()
        warehouse.prepare("x" * 63, SALES)
        for name in ("x" * 64, "ü" * 32):
            with pytest.raises(ArgumentError, match="PostgreSQL would cut it"):
                warehouse.prepare(name, SALES)
            with pytest.raises(ArgumentError, match=r"column=.*would cut it"):
                warehouse.prepare("short", pa.schema([(name, pa.int64())]))

    def test_a_table_of_ones_own(self, place: Place) -> None:
        """With limits, keys and a column of its own, it fits as long as the types do."""
        prepared(place)
        run(
            place,
            "DROP TABLE {table}; CREATE TABLE {table} (sale_id bigint PRIMARY KEY, price numeric(10,2), "
            "vendor character varying(20))",
        )
        warehouse = prepared(place)
        warehouse.commit(batch_of(warehouse, 0))
        assert_same_rows(warehouse.read("sales"), model(0)["sales"])
        with pytest.raises(SinkError, match="duplicate key"):
            warehouse.commit(batch_of(warehouse, 1, {"lost": lost(1), "sales": sales(0)}))
        assert warehouse.read("lost").num_rows == 0

    def test_foreign_keys_to_a_dimension_hold(self, place: Place) -> None:
        """A mirrored change updates the rows that stay: what refers to their surrogate keys is not in the way."""
        warehouse = place.open()
        first = pa.table({"code": ["a", "b"], "key": [1, 2], "until": pa.array([None, None], pa.int32())})
        warehouse.mirror("product", ["code"], first, 1)
        run(place, "ALTER TABLE {table} ADD PRIMARY KEY (key)", "product")
        warehouse.prepare("facts", pa.schema([("product_key", pa.int64())]))
        with psycopg.connect(place.address) as connection:
            facts, product = sql.Identifier(place.name, "facts"), sql.Identifier(place.name, "product")
            connection.execute(
                sql.SQL("ALTER TABLE {} ADD FOREIGN KEY (product_key) REFERENCES {}").format(facts, product)
            )
        warehouse.commit(batch_of(warehouse, 0, {"facts": pa.table({"product_key": [1, 2]})}))
        change = pa.table({"code": ["a", "a"], "key": [1, 3], "until": pa.array([7, None], pa.int32())})
        warehouse.mirror("product", ["code"], change, 2)
        assert_same_rows(warehouse.read("product"), pa.concat_tables([change, first.slice(1)]))
        with pytest.raises(SinkError, match="foreign key"):
            warehouse.mirror("product", ["code"], first.slice(1).set_column(1, "key", [[9]]), 3)
        assert warehouse.mirrored("product") == 2

    def test_types_that_become_wider(self, place: Place) -> None:
        columns = {
            "byte": (pa.int8(), pa.int16(), [-128, None]),
            "unsigned": (pa.uint8(), pa.int16(), [255, None]),
            "short": (pa.uint16(), pa.int32(), [65535, None]),
            "int": (pa.uint32(), pa.int64(), [2**32 - 1, None]),
            "long": (pa.uint64(), pa.decimal128(20, 0), [2**64 - 1, None]),
            "half": (pa.float16(), pa.float32(), [np.float16(1.5), None]),
            "time": (pa.time64("us"), pa.time64("us"), [123_456, None]),
            "seconds": (pa.time32("s"), pa.time64("us"), [60, None]),
            "huge": (pa.decimal256(50, 2), pa.decimal256(50, 2), [12, None]),
            "fixed": (pa.binary(2), pa.binary(), [b"ab", None]),
        }
        rows = pa.table([pa.array(v, k) for k, _, v in columns.values()], names=list(columns))
        rows = rows.append_column("word", pa.array(["a", None]).dictionary_encode())
        warehouse = place.open()
        for _ in range(2):
            warehouse.prepare("wide", rows.schema)
        warehouse.commit(batch_of(warehouse, 0, {"wide": rows}))
        wanted = pa.table([pa.array(v, k).cast(w) for k, w, v in columns.values()], names=list(columns))
        wanted = wanted.append_column("word", pa.array(["a", None]))
        assert_same_rows(warehouse.read("wide"), wanted)

    @pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.duration("us")])
    def test_types_that_postgresql_does_not_have(self, place: Place, kind: pa.DataType) -> None:
        with pytest.raises(SchemaError, match=r"'odd' is .*no column in PostgreSQL"):
            place.open().prepare("sales", pa.schema([("odd", kind)]))
