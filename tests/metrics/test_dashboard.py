"""The dashboard: made from the catalogue, complete, and as Grafana takes it. test_prometheus.py runs its queries."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvpager.metrics.catalogue import BY_NAME, CATALOGUE
from kvpager.metrics.dashboard import as_run, dashboard
from kvpager.metrics.panels import OVERVIEW, SELECTOR, panels

SHIPPED = Path(__file__).parents[2] / "deploy" / "grafana" / "kvpager.json"
PANELS = [*OVERVIEW, *(panel for row in panels().values() for panel in row)]


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(dashboard())
    return read


def test_the_shipped_dashboard_is_the_table() -> None:
    remedy = "out of date: kvpager metrics dashboard > deploy/grafana/kvpager.json"
    assert SHIPPED.read_text() == dashboard(), remedy


def test_every_metric_has_a_panel() -> None:
    text = " ".join(query.expr for panel in PANELS for query in panel.queries)
    assert [metric.name for metric in CATALOGUE if not re.search(rf"\b{metric.name}(_bucket)?\b", text)] == []


def test_queries_name_only_what_there_is() -> None:
    for panel in PANELS:
        for query in panel.queries:
            names = re.findall(r"kvpager_\w+", query.expr)
            assert all(name.removesuffix("_bucket") in BY_NAME for name in names)
            assert query.expr.count(SELECTOR) == len(re.findall(r"\{", query.expr)), "every series is of the job chosen"
            for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
                assert label == "instance" or re.search(rf"by \([^)]*\b{label}\b", query.expr), panel.title


def test_panels_have_places_of_their_own(board: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_queries_ask_the_chosen_data_source(board: dict[str, Any]) -> None:
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "job", "instance"]
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"
            assert "http" not in target["expr"]


def test_variables_are_filled_in() -> None:
    for panel in PANELS:
        for query in panel.queries:
            assert "$" not in as_run(query.expr, "5s")
    assert as_run(f'rate(a{{{SELECTOR},b="c"}}[$__rate_interval])', "5s", 'job="x"') == 'rate(a{job="x",b="c"}[5s])'
