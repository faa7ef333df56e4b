"""Transactions of a PostgreSQL server, and errors that name the server and never the password."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from semistream.errors import ArgumentError, SinkError

if TYPE_CHECKING:
    import psycopg

    from semistream.warehouse.postgres_tables import Session

OLDEST = 150000  # MERGE came with PostgreSQL 15
# A server that is gone without a word is noticed: unless the address says otherwise, within a minute.
_DEFAULTS = {"connect_timeout": "10", "tcp_user_timeout": "60000", "keepalives_idle": "20", "keepalives_interval": "10"}
_LOCK_SECONDS = 120
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_URL = re.compile(r"(\w+://)([^@]*)(@.*)", re.DOTALL)  # who comes before the '@' of the template
_VALUE = re.compile(r"(=\s*)(')?\$\{(\w+)\}(?(2)')|\$\{(\w+)\}")


class Server:
    """Where the database is, how it is reached, and the schema of its tables. Its text never shows the password."""

    def __init__(self, address: str, tries: int, schema: str = "public") -> None:
        driver = _driver()
        try:
            parts = driver.conninfo.conninfo_to_dict(address)
        except driver.Error:
            # Not chained: what libpq says of an address that it cannot read repeats pieces of it.
            raise ArgumentError(
                "the address of the database cannot be read; write 'host=db dbname=shop user=etl' or "
                "'postgresql://etl@db/shop', and keep the password in PGPASSWORD or ~/.pgpass"
            ) from None
        if "@" in str(parts.get("host", "")):  # half a password, most likely: it must not be shown
            raise ArgumentError(
                "the address of the database has an '@' in its host; write an '@' of the password as %40, or keep "
                "the password in PGPASSWORD or ~/.pgpass"
            )
        if tries < 1:
            raise ArgumentError(f"connect_tries={tries} is too few; give 1 or more")
        self._options: dict[str, Any] = {**_DEFAULTS, **parts, "client_encoding": "utf8"}
        self._tries = tries
        self.schema = schema

    def describe(self) -> str:
        """The database, host and user."""
        host = self._options.get("host") or self._options.get("hostaddr") or "the local socket"
        port = f":{self._options['port']}" if "port" in self._options else ""
        user = f" as {self._options['user']}" if "user" in self._options else ""
        return f"database {self._options.get('dbname', '(default)')!r} on {host}{port}{user}"

    def __repr__(self) -> str:
        return f"Server({self.describe()})"

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """All or nothing: committed when the block ends, rolled back when it raises."""
        driver = _driver()
        from semistream.warehouse.postgres_tables import Session

        connection = self._connect()
        try:
            with connection:
                connection.execute(
                    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; "  # after a wait for a lock the newest mark counts
                    f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'; SET LOCAL TimeZone = 'GMT'; "  # which needs no file
                    "SET LOCAL DateStyle = 'ISO, YMD'; SET LOCAL client_min_messages = 'error'"
                )
                yield Session(connection.cursor(), self.schema)
        except driver.errors.LockNotAvailable as error:
            raise SinkError(
                f"{self.describe()}: for {_LOCK_SECONDS} s another run has held what this one needs; stop one of them"
            ) from error
        except driver.Error as error:
            lost = isinstance(error, driver.OperationalError) and (error.sqlstate or "08")[:3] in ("08", "080", "57P")
            what = (
                "the connection was lost, and whether the change is there the next attempt sees" if lost else "failed"
            )
            raise SinkError(f"{self.describe()}: {what}: {self._said(error)}") from self._clean(error)

    def _connect(self) -> psycopg.Connection[Any]:
        driver = _driver()
        problem: Exception | None = None
        for attempt in range(self._tries):
            if attempt:
                time.sleep(0.2 * 2 ** (attempt - 1))
            try:
                connection = driver.connect(**self._options)
            except driver.OperationalError as error:
                problem = error
                continue
            if connection.info.server_version < OLDEST:
                version = connection.info.server_version // 10000
                connection.close()
                raise SinkError(f"{self.describe()} is PostgreSQL {version}; semistream needs 15 or newer")
            return connection
        assert problem is not None
        raise SinkError(
            f"no connection to {self.describe()} after {self._tries} attempts: {self._said(problem)}"
        ) from self._clean(problem)

    def _said(self, error: Exception) -> str:
        """The first line of an error, and where in the data PostgreSQL met it."""
        diag = getattr(error, "diag", None)
        text = (diag.message_primary if diag else None) or str(error).strip().partition("\n")[0]
        context = (diag.context if diag else None) or ""
        where = context.partition("\n")[0]
        return self._hidden(f"{text} ({where})" if where else text)

    def _clean(self, error: Exception) -> Exception | None:
        """The cause, unless it shows the password."""
        return error if self._hidden(str(error)) == str(error) else None

    def _hidden(self, text: str) -> str:
        password = str(self._options.get("password") or "")
        for form in {password, quote(password), quote(password, safe=""), quote_plus(password)} - {""}:
            text = text.replace(form, "***")
        return text


def _driver() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        raise SinkError(
            f"PostgreSQL needs the package psycopg ({error}); run: pip install 'semistream[postgres]'"
        ) from None
    return psycopg


def filled(template: str, environment: Mapping[str, str]) -> str:
    """The address of a database, with each ``${NAME}`` taken from the environment.

    A value stays one value, whatever it holds: a password with an '@' must not become half a password and another
    host, for hosts are shown.

    >>> filled("postgresql://load:${WORD}@db/shop", {"WORD": "a@b"})
    'postgresql://load:a%40b@db/shop'
    """

    def value(found: re.Match[str]) -> str:
        name = found.group(found.lastindex or 0)
        if name not in environment:
            raise ArgumentError(f"the environment has no variable {name}, which postgres = … names")
        return environment[name]

    if url := _URL.fullmatch(template):
        scheme, who, rest = url.groups()
        return scheme + _VARIABLE.sub(lambda found: quote(value(found), safe=""), who) + _VARIABLE.sub(value, rest)
    if "://" in template:
        return _VARIABLE.sub(value, template)

    def quoted(found: re.Match[str]) -> str:
        return value(found) if found.group(1) is None else f"{found.group(1)}'{_escaped(value(found))}'"

    return _VALUE.sub(quoted, template)  # in one pass: a value that looks like a variable is none


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
