"""What an error advises, for tests that follow it."""

from __future__ import annotations

import re


def advised_bytes(error: Exception) -> int:
    """The memory that it says to give."""
    found = re.search(r"give at least ([\d,]*\d) bytes", str(error))
    assert found is not None, error
    return int(found[1].replace(",", ""))
