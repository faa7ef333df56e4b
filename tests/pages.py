"""Pages on adding something, followed as they are written: their file as a module of the package, and their line."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The code of a page, by its language."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@contextmanager
def followed(page: str, name: str, folder: Path) -> Iterator[tuple[ModuleType, str]]:
    """The page's file, imported under this name, and the line that it adds elsewhere."""
    file, line = blocks(page, "python")
    path = folder / f"{name.rpartition('.')[2]}.py"
    path.write_text(file, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        yield module, line
    finally:
        del sys.modules[name]
