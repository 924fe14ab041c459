"""kvpager metrics: the list, and what it refuses. tests/metrics/test_metrics_pages.py compares files and pages."""

import json

import pytest

from kvpager.cli.main import main
from kvpager.metrics.catalogue import CATALOGUE


def test_every_metric_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("kvpager_")] == [metric.name for metric in CATALOGUE]
    assert main(["metrics", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [metric.name for metric in CATALOGUE]


def test_json_of_what_is_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "rules"]) == 0
    text = capsys.readouterr().out
    assert main(["metrics", "rules", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rules": text}


def test_an_unknown_action_is_refused_and_the_like_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "rulez"]) == 2
    assert "rules" in capsys.readouterr().err
