"""The warehouses that the tests of this directory write to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.warehouse.postgres_server import running


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a server of our own, with its password."""
    with running() as address:
        yield address
