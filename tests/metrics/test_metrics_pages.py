"""The documentation pages are the tables, and what prints them is the command."""

from pathlib import Path

import pytest

from kvpager.cli.main import main
from kvpager.metrics.alert_rules import RULES
from kvpager.metrics.alerts_page import alerts_page
from kvpager.metrics.catalogue import CATALOGUE
from kvpager.metrics.metrics_page import metrics_page

ROOT = Path(__file__).parents[2]


def test_the_page_of_the_metrics_is_their_table() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert page == metrics_page(), "out of date: kvpager metrics page > docs/metrics.md"
    assert [metric.name for metric in CATALOGUE if page.count(f"| `{metric.name}` |") != 1] == []


def test_the_page_of_the_alerts_is_their_table() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text()
    assert page == alerts_page(), "out of date: kvpager metrics alerts-page > docs/alerts.md"
    assert [rule.name for rule in RULES if page.count(f"## {rule.name}\n") != 1] == []


@pytest.mark.parametrize(
    ("what", "path"),
    [
        ("rules", "deploy/prometheus/kvpager.rules.yml"),
        ("dashboard", "deploy/grafana/kvpager.json"),
        ("page", "docs/metrics.md"),
        ("alerts-page", "docs/alerts.md"),
    ],
)
def test_the_command_prints_what_is_shipped(what: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", what]) == 0
    assert capsys.readouterr().out == (ROOT / path).read_text()
