"""Packages that only some commands need: looked for before any work is done, and named with their extra.

>>> need("a benchmark", "pyarrow")
"""

from __future__ import annotations

from importlib.util import find_spec

from semistream.errors import SemistreamError

_EXTRAS = {
    "deltalake": "pipeline",
    "pandas": "pipeline",
    "pyspark": "pipeline",
    "sqlglot": "pipeline",
}
PIPELINE = ("pyspark", "pandas", "deltalake", "sqlglot")


def need(what: str, *packages: str, otherwise: str = "") -> None:
    """Raise an error that says what to install, when one of the packages is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        extras = ",".join(sorted({_EXTRAS[name] for name in missing if name in _EXTRAS}))
        package = f"'semistream[{extras}]'" if extras else "semistream-lab"
        raise SemistreamError(f"{what} needs {', '.join(missing)}; run: pip install {package}{otherwise}")
