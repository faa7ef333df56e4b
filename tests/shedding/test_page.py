"""The page on shedding does what it says."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from semistream.shedding import STRATEGIES, Shed
from tests.shedding.clocks import Clock

PAGE = (Path(__file__).parents[2] / "docs" / "shedding.md").read_text(encoding="utf-8")


def test_examples(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semistream.Shed", partial(Shed, clock=Clock()))  # a second more would keep two rows more
    examples = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    [plain] = [example for example in examples if "semistream.spark" not in example]
    exec(compile(plain, "docs/shedding.md", "exec"), {})
    [expected] = re.findall(r"# (.*)$", plain, re.MULTILINE)
    assert capsys.readouterr().out.strip() == expected
    for example in examples:
        compile(example, "docs/shedding.md", "exec")


def test_every_strategy_is_described() -> None:
    for name in STRATEGIES:
        assert f"| `{name}` |" in PAGE
