"""Secrets in the address of a database: whatever they hold, they are one value, and nobody sees them."""

from __future__ import annotations

import pytest

from semistream.errors import ArgumentError
from semistream.warehouse.postgres import PostgresWarehouse, filled

ODD = [
    "plain",
    "se@cret",
    "a/b:c?d=e&f#g",
    "per%cent",
    "spa ce",
    "quo'te",
    "back\\slash",
    "né",
    "%41",
    "x' host='evil",
    "a${HOME}b",
]
TEMPLATES = [
    "postgresql://load:${SECRET}@db:5433/shop",
    "postgres://load:${SECRET}@db:5433/shop?connect_timeout=1",
    "host=db port=5433 user=load dbname=shop password=${SECRET}",
    "host=db port=5433 user=load password='${SECRET}' dbname=shop",
    "host=db port=5433 user=load password = ${SECRET} dbname=shop",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("secret", ODD)
def test_a_password_is_one_value(template: str, secret: str) -> None:
    from psycopg.conninfo import conninfo_to_dict

    found = conninfo_to_dict(filled(template, {"SECRET": secret}))
    wanted = {"host": "db", "port": "5433", "user": "load", "dbname": "shop", "password": secret}
    assert {name: found.get(name) for name in wanted} == wanted
    warehouse = PostgresWarehouse(filled(template, {"SECRET": secret}), staging="staging")
    assert secret not in repr(warehouse)


def test_other_parts_are_taken_as_they_are() -> None:
    given = {"URL": "postgresql://load@db/shop?x=1", "HOST": "db:5433", "DSN": "host=db dbname=shop", "NAME": "shop"}
    assert filled("${URL}", given) == given["URL"]
    assert filled("postgresql://load@${HOST}/${NAME}", given) == "postgresql://load@db:5433/shop"
    assert filled("${DSN} user=load", given) == "host=db dbname=shop user=load"
    assert filled("host=db dbname=shop", {}) == "host=db dbname=shop"
    with pytest.raises(ArgumentError, match="has no variable NONE"):
        filled("postgresql://load:${NONE}@db/shop", given)


def test_half_a_password_is_not_shown_as_a_host() -> None:
    with pytest.raises(ArgumentError, match="as %40") as found:
        PostgresWarehouse("postgresql://load:se@cret@db/shop", staging="staging")
    assert "cret" not in str(found.value)
