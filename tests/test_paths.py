"""A path is on this host: whatever names another place is refused before anything is made of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import typer

from semistream import MasterStore, join
from semistream.changes import SeenKeys, apply_changes, snapshot_differences
from semistream.changes.reading import read_changes
from semistream.commands import main as cli
from semistream.commands.command_line import Commands
from semistream.dimensions import Dimension
from semistream.errors import ArgumentError, local_path
from semistream.pipeline import Pipeline, Source, StoreSink, assign_keys, lookup, source
from semistream.pipeline.file import load
from semistream.shedding import Shed
from semistream.warehouse import query_of
from semistream.warehouse.delta import DeltaSink
from semistream.warehouse.delta_tables import DeltaWarehouse
from semistream.warehouse.postgres import PostgresWarehouse
from semistream.warehouse.reconcile import reconcile
from semistream_lab.workloads.files import write_workload
from semistream_lab.workloads.reports import read_reports, write_reports
from semistream_lab.workloads.retail import RetailWorkload, write_files, write_master
from semistream_lab.workloads.zipf import ZipfWorkload

REMOTE = ("s3://bucket/x", "s3:/bucket/x", "s3a://bucket/x", "hdfs://node:9000/x", "https://host/x", "file:///x")
KEY = pa.schema({"id": pa.int64()})
ROWS = pa.table({"id": [1], "name": ["a"]})


def _pipeline(**more: object) -> Pipeline:
    settings = {"table": "t", "state": "state", "sink": DeltaWarehouse("warehouse"), **more}
    return Pipeline(source("rate"), [], **settings)  # type: ignore[arg-type]


ENTRIES: dict[str, Callable[[str], object]] = {
    "MasterStore.build": lambda path: MasterStore.build(ROWS, path, key="id"),
    "MasterStore.build, source": lambda path: MasterStore.build(path, "store", key="id"),
    "MasterStore.open": MasterStore.open,
    "MasterStore.upsert": lambda path: MasterStore.open("there").upsert(path),
    "join": lambda path: list(join([ROWS.to_batches()[0]], path, on="id")),
    "Dimension.create": lambda path: Dimension.create(path, key=KEY, attributes=pa.schema([]), surrogate="sk"),
    "Dimension.open": Dimension.open,
    "SeenKeys": lambda path: SeenKeys(path, KEY),
    "apply_changes": lambda path: apply_changes(path, ROWS),
    "snapshot_differences": lambda path: list(snapshot_differences(ROWS, path)),
    "snapshot_differences, snapshot": lambda path: list(snapshot_differences(path, "there")),
    "snapshot_differences, scratch": lambda path: list(snapshot_differences(ROWS, "there", scratch=path)),
    "read_changes": lambda path: read_changes(path, ROWS.schema, ["id"]),
    "DeltaSink": lambda path: DeltaSink(path, "app"),
    "DeltaSink, checkpoint": lambda path: DeltaSink("sink", "app", checkpoint=path),
    "query_of": query_of,
    "DeltaWarehouse": DeltaWarehouse,
    "PostgresWarehouse": lambda path: PostgresWarehouse("host=db", staging=path),
    "reconcile": lambda path: reconcile(path, "table"),
    "reconcile, table": lambda path: reconcile("there", path),
    "reconcile, master": lambda path: reconcile("there", "table", master=path),
    "reconcile, checkpoint": lambda path: reconcile("there", "table", checkpoint=path),
    "Shed": lambda path: Shed("topw", to=path),
    "lookup": lambda path: lookup(path, on="id"),
    "assign_keys": lambda path: assign_keys(path, on="id"),
    "Pipeline, state": lambda path: _pipeline(state=path),
    "Pipeline, dimensions": lambda path: _pipeline(dimensions={"products": path}),
    "StoreSink": lambda path: StoreSink(path, "app"),
    "StoreSink, rejects": lambda path: StoreSink("there", "app", rejects=path),
    "load": load,
    "write_workload": lambda path: write_workload(ZipfWorkload(10), path, stream_rows=1),
    "write_master": lambda path: write_master(path, RetailWorkload(10)),
    "write_files": lambda path: list(write_files(ROWS.to_batches(), path)),
    "write_reports": lambda path: write_reports([], path),
    "read_reports": lambda path: list(read_reports(path)),
}
SETTINGS = {
    "state": 'state = "{}"',
    "lookup": 'step = [{{ lookup = "{}", on = "value" }}]',
    "assign_keys": 'step = [{{ assign_keys = "{}", on = "value" }}]',
    "sink, delta": 'sink = {{ delta = "{}", table = "t" }}',
    "dimensions": 'dimensions = {{ products = "{}" }}',
}
COMMANDS = [
    ("build", "{}", "store", "--key", "id"),
    ("build", "there.parquet", "{}", "--key", "id"),
    ("inspect", "{}"),
    ("verify", "{}"),
    ("get", "{}", "1"),
    ("upsert", "{}", "there.parquet"),
    ("upsert", "there", "{}"),
    ("delete", "{}", "1"),
    ("compact", "{}"),
    ("vacuum", "{}"),
    ("apply", "{}", "there.parquet"),
    ("apply", "there", "{}"),
    ("diff", "there.parquet", "{}"),
    ("diff", "{}", "there"),
    ("reconcile", "{}", "--to", "table"),
    ("reconcile", "there", "--to", "{}"),
    ("reconcile", "there", "--to", "table", "--master", "{}"),
    ("reconcile", "there", "--to", "table", "--checkpoint", "{}"),
    ("generate", "zipf", "--out", "{}", "--rows", "10"),
    ("check", "{}"),
    ("run", "{}"),
    ("status", "{}"),
    ("retry", "{}"),
    ("plan", "--master", "{}", "--rate", "10"),
    ("doctor", "--directory", "{}"),
    ("demo", "--directory", "{}"),
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    MasterStore.build(ROWS, "there", key="id")


def _made(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if ":" in path.name or path.name in ("bucket", "host"))


@pytest.mark.parametrize("entry", ENTRIES)
def test_refused_everywhere(entry: str, tmp_path: Path) -> None:
    for path in REMOTE:
        for given in (path, Path(path)):
            with pytest.raises(ArgumentError, match="is remote"):
                ENTRIES[entry](given)  # type: ignore[arg-type]
    assert not _made(tmp_path)


@pytest.mark.parametrize("setting", SETTINGS)
def test_refused_in_a_pipeline_file(setting: str, tmp_path: Path) -> None:
    lines = {"state": 'state = "state"', "sink": 'sink = { delta = "warehouse", table = "t" }'}
    text = SETTINGS[setting]
    for path in REMOTE:
        lines[setting.partition(",")[0]] = text.format(path)
        (tmp_path / "p.toml").write_text("\n".join([*lines.values(), '[source]\nformat = "rate"']))
        with pytest.raises(ArgumentError, match=r"line \d+: .*is remote"):
            load(tmp_path / "p.toml")
    assert not _made(tmp_path)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_refused_on_the_command_line(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["semistream", *(part.format("s3://bucket/x") for part in command)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "'s3://bucket/x' is remote" in " ".join(capsys.readouterr().err.split())
    assert not _made(tmp_path)


def test_every_group_of_commands_checks_its_paths() -> None:
    groups: list[typer.Typer | None] = [cli.app]
    for group in groups:  # it grows on the way
        assert isinstance(group, Commands)
        groups += [below.typer_instance for below in group.registered_groups]
    assert len(groups) > 8


def test_a_remote_source_of_a_file(tmp_path: Path) -> None:
    text = 'state = "state"\nsink = { delta = "w", table = "t" }\n[source]\nformat = "json"\n'
    (tmp_path / "p.toml").write_text(text + 'path = "s3a://bucket/in"\nschema = { id = "bigint" }\n')
    read = load(tmp_path / "p.toml").source
    assert isinstance(read, Source)
    assert read.path == "s3a://bucket/in"


def test_a_colon_elsewhere_is_part_of_a_name(tmp_path: Path) -> None:
    for name in ("./s3:/x", "a:b", "data/12:30/x", "c:/x"):
        assert local_path("path", name) == Path(name)
