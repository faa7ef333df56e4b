"""What the documents name exists, what exists is named, and figures that stand in two places are the same."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
import typer

import semistream
from semistream import errors, stats
from semistream.commands.main import app
from semistream.joins import JOINS
from semistream.pipeline import file as pipeline_file
from semistream.pipeline.decision import CAME, WENT
from semistream.pipeline.steps import STEPS
from semistream.pipeline.steps.lookup import OnMiss
from semistream.spark.operator import CACHE_SHARE
from semistream.warehouse import WAREHOUSES

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "semistream"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RULES = {
    f"rows_in = {' + '.join(stats.WENT)}",
    f"{' + '.join(CAME)} = {' + '.join(WENT)}",
}
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d[\d,.]*")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    """The part of a page under a heading of the second level."""
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text_of(name), re.MULTILINE | re.DOTALL)
    return str(found)


def rows(text: str) -> list[list[str]]:
    """The cells of all tables, without heads and rules."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    ruled = [number for number, row in enumerate(cells) if set(row[0]) <= set("-:") and row[0]]
    return [row for number, row in enumerate(cells) if number not in ruled and number + 1 not in ruled]


def anchors(page: Path) -> set[str]:
    """What a link may point to, by GitHub's rule."""
    heads = re.findall(r"^#+ (.+)$", _CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", _CODE.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http:", "https:")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


class TestMeasured:
    def test_the_readme_quotes_the_benchmarks(self) -> None:
        quoted = rows(section("README.md", "Measured"))
        assert len(quoted) >= 5
        for what, figures, source in quoted:
            anchor = source.partition("#")[2].rstrip(")")
            there = section("docs/benchmarks.md", next(t for t in ("Core", "Spark", "Pipeline") if t.lower() == anchor))
            known = set(_NUMBER.findall(" ".join(_without_brackets(cell) for row in rows(there) for cell in row)))
            assert set(_NUMBER.findall(figures)) <= known, what

    def test_the_split_on_spark(self) -> None:
        share = f"{CACHE_SHARE:.0%}".replace("%", " %")
        assert f"of what buffers leave, {share} is the cache" in _flowing("docs/how_it_works.md")


def _without_brackets(cell: str) -> str:
    """Figures in brackets are older, or spreads."""
    return re.sub(r"\([^)]*\)", "", cell)


def _flowing(name: str) -> str:
    return " ".join(text_of(name).split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_one_accounting_rule(page: Path) -> None:
    flowing = " ".join(page.read_text(encoding="utf-8").split())
    for formula in re.findall(r"[\w +]*= *(?:matched|enriched) \+[\w +]*", flowing):
        assert any(rule in formula for rule in RULES), formula


class TestCommands:
    def commands(self) -> set[str]:
        """All commands, those of a group with its name."""
        found = set()
        for name, command in _commands(typer.main.get_command(app)).items():
            found |= {f"{name} {one}" for one in _commands(command)} or {name}
        return found

    def test_all_are_listed(self) -> None:
        listed = [row[0] for row in rows(text_of("docs/commands.md"))]
        assert sorted(listed) == sorted(f"`semistream {name}`" for name in self.commands())

    @pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
    def test_those_that_are_named_exist(self, page: Path) -> None:
        known = self.commands()
        groups = {name.partition(" ")[0] for name in known if " " in name}
        code = re.findall(
            r"^```(?:bash|console)?\n(.*?)^```|`(semistream [^`]+)`", page.read_text(), re.MULTILINE | re.DOTALL
        )
        named = re.findall(
            r"^semistream +(\w+)(?: +(\w+))?", "\n".join(block or inline for block, inline in code), re.MULTILINE
        )
        for first, second in named:
            assert first in known or (first in groups and (not second or f"{first} {second}" in known)), (first, second)


def _commands(group: object) -> dict[str, object]:
    return dict(getattr(group, "commands", {}))


class TestJoins:
    def test_all_are_listed(self) -> None:
        head = text_of("docs/joins.md").partition("## ")[0]
        assert {name for row in rows(head) for name in re.findall(r"`(\w+)`", row[0])} == set(JOINS)

    def test_their_settings(self) -> None:
        listed = {row[0].strip("`"): row[1] for row in rows(section("docs/joins.md", "Settings"))}
        having = {name: join.settings_type for name, join in JOINS.items() if join.settings_type is not None}
        assert set(listed) == set(having)
        for name, kind in having.items():
            assert dataclasses.is_dataclass(kind)
            for field in dataclasses.fields(kind):
                shown = field.default if isinstance(field.default, str | int | float) else ...
                value = '"' + shown + '"' if isinstance(shown, str) else "..." if shown is ... else repr(shown)
                assert f"{field.name}={value}" in listed[name], name
            assert listed[name].startswith(f"`{kind.__name__}(")

    @pytest.mark.parametrize("name", JOINS)
    def test_one_file_per_join(self, name: str) -> None:
        home = {"whole": "whole", "sweep": "sweep.join"}.get(name, f"papers.{name}")
        assert JOINS[name].__module__ == f"semistream.joins.{home}"


class TestPipelines:
    PAGE = "docs/pipelines.md"

    def test_on_miss(self) -> None:
        listed = rows(section(self.PAGE, "A row without a match: `on_miss`"))
        assert {row[0].strip("`") for row in listed} == set(get_args(OnMiss))

    def test_steps_and_settings(self) -> None:
        settings = section(self.PAGE, "Settings")
        for step in STEPS:
            assert f"`{step} =" in settings or f"| `{step}` |" in settings, step
        for sink in WAREHOUSES:
            assert f"`{sink} =" in settings, sink
        for name in (*pipeline_file._SHED, *(set(pipeline_file._TOP) - {"source", "step", "sink", "shed"})):
            assert f"`{name}`" in settings, name

    def test_counts(self) -> None:
        listed = {row[0] for row in rows(section(self.PAGE, "Where a row goes"))}
        assert listed == {*CAME, *WENT} - {"rows_in"}

    def test_errors(self) -> None:
        for row in rows(section(self.PAGE, "When it stops")):
            for name in re.findall(r"`(\w+Error)`", row[0]):
                assert hasattr(errors, name), name


class TestHouse:
    PAGE = "docs/how_it_works.md"

    def test_every_room_is_shown(self) -> None:
        (shown,) = re.findall(r"^```\nsrc/semistream/\n(.*?)^```", text_of(self.PAGE), re.MULTILINE | re.DOTALL)
        rooms = {path.parent.name for path in SOURCES.glob("*/__init__.py")}
        ground = {path.stem for path in SOURCES.glob("*.py")} - {"__init__"}
        assert set(re.findall(r"^  (\w+)/ ", shown, re.MULTILINE)) == rooms
        assert set(shown.splitlines()[0].partition("  the ground")[0].split()) == ground

    def test_names_exist(self) -> None:
        named = re.findall(r"`(\w+(?:\.\w+)+)`", section(self.PAGE, "The house"))
        named += [row[2].strip("`") for row in rows(text_of("docs/glossary.md"))]
        assert len(named) > 50
        wrong = [name for name in named if not _exists(name)]
        assert not wrong, f"not in semistream: {', '.join(wrong)}; they are on {self.PAGE} or docs/glossary.md"


def _exists(name: str) -> bool:
    """Is there such a module, class or function below semistream?"""
    here: object = semistream
    path = "semistream"
    for part in name.split("."):
        path += f".{part}"
        if not hasattr(here, part):
            try:
                importlib.import_module(path)
            except ModuleNotFoundError as error:
                if error.name != path and not path.startswith(f"{error.name}."):
                    raise
                return False
        here = getattr(here, part)
    return True


def test_extras() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    assert {row[0].strip("`") for row in rows(section("README.md", "Install"))} == set(extras)
    everything = "\n".join(path.read_text(encoding="utf-8") for path in [*PAGES, *SOURCES.rglob("*.py")])
    for named in re.findall(r"semistream(?:-\S+\.whl)?\[([a-z,]+)\]", everything):
        assert set(named.split(",")) <= set(extras), named
    assert f"semistream-{project['version']}-py3-none-any.whl" in text_of("README.md")


class TestRules:
    """Those of CONTRIBUTING.md that can be looked up."""

    def test_errors_are_in_one_place(self) -> None:
        known = {name for name in vars(errors) if name.endswith("Error")}
        for path in SOURCES.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and path.name != "errors.py":
                    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                    assert not bases & known, f"{path}: {node.name} belongs in errors.py"

    def test_every_package_has_its_tests(self) -> None:
        packages = {path.parent.name for path in SOURCES.glob("*/__init__.py")}
        assert {name for name in packages if not any((ROOT / "tests" / name).glob("test_*.py"))} == set()
