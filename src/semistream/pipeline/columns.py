"""Names of the columns that travel beside a row while a batch is computed; a user's columns must not begin so."""

from __future__ import annotations

PREFIX = "_ss_"
ROUTE = "_ss_route"  # where the row goes; NULL while it is on its way into the table
REASON = "_ss_reason"
SOURCE = "_ss_source"  # the file it came from
BROKEN = "_ss_broken"  # the text of a record that could not be read
RECORD = "_ss_record"  # a quarantined row as text
TOO_MANY = "_ss_too_many"  # marks the rows that a batch sheds
IDENTITY = "_ss_row"  # numbers input rows, where a lookup may give several rows for one
SINCE = "_ss_since"  # when a row that was held began to wait, in seconds since 1970
EXPIRED = "_ss_expired"  # of a row that was held: it waited in vain
HELD_TIME = "_held_time"  # in a file of held rows: the moment as of which a row asks

# Routes. The first is the column's NULL; rows of the next two are written for the driver.
FACT, UNRESOLVED, KEYS = "fact", "unresolved", "keys"
UNMATCHED, HELD, DUPLICATE, FILTERED = "unmatched", "held", "duplicate", "filtered"
QUARANTINE, DROPPED, FAILED, SHED = "quarantine", "dropped", "failed", "shed"
# A row that must match fails the batch whatever its other copies do; one that is loaded in part is loaded.
FIRST = (FAILED, FACT, HELD, UNMATCHED, QUARANTINE, DROPPED, DUPLICATE, FILTERED, SHED)


def status_column(number: int) -> str:
    """Tells whether a row matched in the number-th lookup; NULL when it was not asked."""
    return f"_ss_status{number}"


def asked_columns(number: int, parts: int) -> list[str]:
    """The key that the number-th lookup asks for; NULL when the row is out of the way already."""
    return [f"_ss_key{number}_{part}" for part in range(parts)]


def time_column(number: int) -> str:
    """The time as of which the number-th lookup asks."""
    return f"_ss_time{number}"


def carrier_column(number: int) -> str:
    """Has the counters of lookups done together, the first of which is the number-th; NULL in most rows."""
    return f"_ss_counters{number}"


def held_key(part: int) -> str:
    """In a file of held rows: the part-th column of the key that a row waits for."""
    return f"_held_key{part}"
