"""The pages on changes and dimensions do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["changes", "dimensions"])
def test_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, f"docs/{name}.md", "exec"), names)
    expected = [
        said.partition(", as before")[0]
        for example in examples
        for said in re.findall(r"print\(.*  # (.*)$", example, re.MULTILINE)
    ]
    assert capsys.readouterr().out.splitlines() == expected
