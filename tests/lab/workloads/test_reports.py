"""Weather reports: the format column by column, there and back, and what is said of damage; the generator."""

from __future__ import annotations

import datetime as dt
import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semistream.errors import ArgumentError, SchemaError
from semistream_lab.workloads.reports import EDITIONS, FIELDS, read_reports, report_schema, write_reports
from semistream_lab.workloads.weather import WeatherWorkload

# One report, put together by hand from the format's description: 2 December 1981, 15 h UTC, light; 51.28 N 0.77 W;
# station 03772; land; weather 61; N 8, Nh 7, h 4, CL 6, CM and CH not known; AM 900, AH 900; UM 9, UH 9; IC 0; SA -2.3;
# RI 0.45. The edition C adds: pressure 998.7, wind 5.1 from 240, air 8.3, dew point 1.2 below, 67 m, measured, no flag.
LINE = "811202151 512835923037721618 7 4 6-1-190090099 0 -23  45"
MORE = " 9987 51240  83 12  6710"


def parsed(path: Path) -> pa.Table:
    return pa.Table.from_batches(list(read_reports(path)))


def test_widths_of_the_editions() -> None:
    assert {edition: sum(field.width for field in fields) for edition, fields in EDITIONS.items()} == {"B": 56, "C": 80}
    assert len(LINE) == 56
    assert len(LINE + MORE) == 80


@pytest.mark.parametrize("line", [LINE, LINE + MORE])
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_report_by_hand(line: str, end: str, tmp_path: Path) -> None:
    (tmp_path / "reports").write_text(line + end, newline="")
    row = parsed(tmp_path / "reports").to_pylist()[0]
    assert row["at"] == dt.datetime(1981, 12, 2, 15, tzinfo=dt.UTC)
    assert (row["latitude"], row["longitude"], row["station"], row["surface"]) == (5128, 35923, 3772, 1)
    assert (row["weather"], row["cloud_cover"], row["low_amount"], row["low_type"]) == (61, 8, 7, 6)
    for name in ("middle_type", "high_type", "middle_amount", "high_amount", "middle_seen", "high_seen"):
        assert row[name] is None
    assert (row["solar_altitude"], row["moonlight"], row["sky_bright"]) == (-23, 45, 1)
    if line != LINE:
        assert (row["pressure"], row["wind_speed"], row["wind_direction"], row["air_temperature"]) == (
            9987,
            51,
            240,
            83,
        )
        assert (row["dew_point_depression"], row["elevation"], row["wind_measured"]) == (12, 67, 1)
    write_reports(read_reports(tmp_path / "reports"), tmp_path / "again")
    assert (tmp_path / "again").read_text() == line + "\n"


@pytest.mark.parametrize("edition", ["B", "C"])
def test_there_and_back(edition: str, tmp_path: Path) -> None:
    load = WeatherWorkload(rows=66_000, edition=edition)  # type: ignore[arg-type]
    assert write_reports(load.master(9_999), tmp_path / "master") == 66_000
    made = pa.Table.from_batches(load.master()).combine_chunks()
    assert parsed(tmp_path / "master").combine_chunks().equals(made)
    assert not list(tmp_path.glob(".*"))
    (tmp_path / "master.gz").write_bytes(gzip.compress((tmp_path / "master").read_bytes()))
    assert parsed(tmp_path / "master.gz").num_rows == 66_000


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    assert list(read_reports(tmp_path / "none")) == []


@pytest.mark.parametrize(
    "text, message",
    [
        ("too short\n", r"line 1: a report has 56 \(NDP-026B\) or 80 \(NDP-026C\) characters, this line has 9"),
        (f"{LINE}\n{LINE[:-1]}\n", "line 2: not 56 characters as in line 1"),
        (f"{LINE}\n{LINE}\n{LINE[:20]}", "line 3: not 56 characters"),
        (f"{LINE}\n{LINE[:14]}36001{LINE[19:]}\n", r"line 2, characters 15 to 19: '36001' is no longitude \(LON\)"),
        (f"{LINE}\n{LINE[:14]}3 923{LINE[19:]}\n", "line 2, characters 15 to 19: '3 923' is no longitude"),
        (f"{LINE[:9]}--128{LINE[14:]}\n", "line 1, characters 10 to 14: '--128' is no latitude"),
        (f"81023015{LINE[8:]}\n", r"line 1, characters 1 to 8: '81023015' is no at \(yr,mn,dy,hr\)"),
        (f"81120224{LINE[8:]}\n", "'81120224' is no at"),
        (f"81130215{LINE[8:]}\n", "'81130215' is no at"),
        (f"{LINE[:8]}x{LINE[9:]}\n", "'x' is no sky_bright"),
    ],
)
def test_damage_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    path.write_text(text)
    with pytest.raises(SchemaError, match=message) as raised:
        parsed(path)
    assert str(path) in str(raised.value)


def test_what_the_format_cannot_hold(tmp_path: Path) -> None:
    batch = WeatherWorkload(rows=10).stream(0, 10)

    def written(name: str, values: object) -> None:
        place = batch.schema.get_field_index(name)
        array = pa.array(values, batch.schema.field(name).type)
        write_reports([batch.set_column(place, batch.schema.field(name), array)], tmp_path / "x")

    with pytest.raises(SchemaError, match=r"'longitude' .LON. holds 36001"):
        written("longitude", [36_001] * 10)
    with pytest.raises(SchemaError, match=r"'longitude' .LON. is NULL"):
        written("longitude", [None] * 10)
    with pytest.raises(SchemaError, match="years outside"):
        written("at", [dt.datetime(2001, 1, 1, tzinfo=dt.UTC)] * 10)
    with pytest.raises(SchemaError, match="needs the column 'moonlight'"):
        write_reports([batch.drop_columns(["moonlight"])], tmp_path / "x")
    assert not (tmp_path / "x").exists()


LOAD = WeatherWorkload(rows=60_000, seed=3)


def test_months_as_in_the_papers() -> None:
    months = set(pc.month(pa.Table.from_batches(LOAD.master()).column("at")).to_pylist())
    assert months <= {4, 8}
    late = LOAD.stream(6_700 * 248 * 10, 100).column("at")  # after ten Decembers they come again
    assert set(pc.month(late).to_pylist()) == {12}
    assert pc.min(late).as_py().year == 1981


def test_longitudes_are_clustered_and_shared() -> None:
    longitude = pa.Table.from_batches(LOAD.master()).column("longitude").to_numpy()
    assert 0 <= longitude.min() <= longitude.max() < 36_000
    by_ten_degrees = np.histogram(longitude, bins=36, range=(0, 36_000))[0]
    assert by_ten_degrees.max() > 5 * by_ten_degrees.min() > 0
    rows = np.unique(longitude, return_counts=True)[1]
    assert rows.mean() > 3  # many rows a key
    stream = LOAD.stream(0, 20_000).column("longitude").to_numpy()
    assert 0.85 < np.isin(stream, longitude).mean() < 1  # ships come to new places


def test_stations_stay_and_ships_move() -> None:
    rounds = [LOAD.stream(6_700 * number, 6_700).to_pandas().set_index("station") for number in (0, 40)]
    land = [found[found.surface == 1].sort_index() for found in rounds]
    assert len(land[0]) == 6_000
    assert land[0].longitude.equals(land[1].longitude)
    sea = [found[found.surface == 2].sort_index() for found in rounds]
    assert (sea[0].longitude.to_numpy() != sea[1].longitude.to_numpy()).mean() > 0.9
    assert (sea[0].longitude % 10 == 0).all()


def test_reports_are_consistent() -> None:
    rows = LOAD.stream(0, 20_000).to_pandas()
    clear = rows[rows.cloud_cover == 0]
    assert (clear[["low_amount", "low_type", "middle_type", "high_type"]] == 0).all().all()
    assert (rows.low_amount.dropna() <= rows.cloud_cover[rows.low_amount.notna()]).all()
    seen = rows.dropna(subset=["middle_seen"])
    assert (seen.low_amount + seen.middle_seen + seen.high_seen == seen.cloud_cover).all()
    assert rows.middle_type[rows.low_amount == 8].isna().all()
    assert (rows.sky_bright[rows.solar_altitude >= -90] == 1).all()
    assert rows.solar_altitude.between(-900, 900).all()
    noon = rows[(rows.longitude < 1500) & (rows["at"].dt.hour == 12) & (rows.latitude.abs() < 5000)]
    assert (noon.solar_altitude > 0).all()


def test_bad_arguments() -> None:
    for arguments, message in (
        ({"rows": 0}, "rows=0"),
        ({"stations": 0}, "stations=0"),
        ({"stations": 98_000}, "97,000"),
        ({"ships": -1}, "ships=-1"),
        ({"edition": "D"}, "edition='D'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            WeatherWorkload(**arguments)


def test_columns_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text(encoding="utf-8")
    for field in EDITIONS["C"]:
        assert f"`{field.name}`" in page, field.name
    assert len(FIELDS) == len(report_schema("B"))
