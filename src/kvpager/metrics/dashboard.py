"""The dashboard for Grafana, as JSON made of the panels (metrics/panels.py). Knows Grafana's format, and no metric."""

import json
from collections.abc import Iterator

from kvpager.metrics.panels import OVERVIEW, SELECTOR, Panel, panels

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24  # of Grafana's grid
_WIDTH, _HEIGHT = 8, 8
_STAT_WIDTH, _STAT_HEIGHT = 3, 4


def dashboard() -> str:
    board = {
        "uid": "kvpager",
        "title": "kvpager",
        "description": "The memory of an LLM server: blocks, prefixes, faults, tiers; and its requests. "
        "Made by `kvpager metrics dashboard`.",
        "tags": ["kvpager", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_variable(), _variable("job", ""), _variable("instance", 'job=~"$job"')]},
        "panels": list(_panels()),
    }
    return json.dumps(board, indent=1) + "\n"


def _source_variable() -> dict[str, object]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(label: str, selector: str) -> dict[str, object]:
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values(kvpager_build_info{{{selector}}}, {label})",
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, object]]:
    number = row = 0
    for place, panel in enumerate(OVERVIEW):
        number += 1
        yield _panel(panel, number, place * _STAT_WIDTH % _COLUMNS, row)
    row += _STAT_HEIGHT
    for group, found in panels().items():
        number += 1
        yield {"id": number, "type": "row", "title": group.value, "collapsed": False, "panels": [],
               "gridPos": {"x": 0, "y": row, "w": _COLUMNS, "h": 1}}  # fmt: skip
        row += 1
        for place, panel in enumerate(found):
            number += 1
            column = place * _WIDTH % _COLUMNS
            row += _HEIGHT if place and not column else 0
            yield _panel(panel, number, column, row)
        row += _HEIGHT


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, object]:
    size = (_STAT_WIDTH, _STAT_HEIGHT) if panel.is_stat else (_WIDTH, _HEIGHT)
    custom = {"fillOpacity": 30, "stacking": {"mode": "normal"}} if panel.is_stacked else {"fillOpacity": 0}
    return {
        "id": number,
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": size[0], "h": size[1]},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"textMode": "name" if "{{version}}" in panel.queries[0].legend else "auto"}
        if panel.is_stat
        else {},
        "targets": [
            {"refId": chr(65 + place), "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend}
            for place, query in enumerate(panel.queries)
        ],
    }


def as_run(expr: str, interval: str, selector: str = "") -> str:
    """A query as Prometheus takes it: Grafana's variables filled in."""
    filled = expr.replace(f"{SELECTOR},", f"{selector}," if selector else "").replace(SELECTOR, selector)
    return filled.replace("$__rate_interval", interval)
