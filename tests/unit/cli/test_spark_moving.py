"""Commands `lattice spark load` and `export`: what they make of their arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from datalattice.cli.spark.moving import absolute, parse_settings
from datalattice.errors import UsageError


def test_options_are_names_and_values() -> None:
    assert parse_settings(None) == {}
    assert parse_settings(["sep=;", "nullValue=", "where=a=b"]) == {
        "sep": ";",
        "nullValue": "",
        "where": "a=b",
    }


@pytest.mark.parametrize("given", [["sep"], ["=x"], ["a=1", "a=2"]])
def test_an_option_of_another_form_is_refused(given: list[str]) -> None:
    with pytest.raises(UsageError, match="--option is NAME=VALUE, each name once, got"):
        parse_settings(given)


def test_paths_mean_the_same_in_other_processes() -> None:
    assert absolute("rows.csv") == str(Path.cwd() / "rows.csv")
    assert absolute("~/rows.csv") == str(Path.home() / "rows.csv")
    assert absolute("hdfs://host/rows.csv") == "hdfs://host/rows.csv"
