"""One page with the figures of benchmarks, complete in one file: no script, no font, nothing loaded from anywhere.

Each figure stands in a table with its unit, target, verdict and spread; beside a target a bar shows how far the value
is from it. Every bar says in words what it shows. Knows reports; runs nothing.
"""

import math
from collections.abc import Sequence
from html import escape

from kvpager.bench.recorded import Figure, Report
from kvpager.simulator.page_style import STYLE

_WIDTH, _HEIGHT = 180, 14  # of a bar, pixels
_MOST = 2.0  # times the target: where the drawing ends

_COLUMNS = ("figure", "value", "unit", "target", "against the target", "met", "quartiles")
_TEXTS = ("figure", "unit", "met")  # columns to the left; numbers stand to the right

_OWN_STYLE = """
:root { --met: #00845f; --missed: #c43d00; }
@media (prefers-color-scheme: dark) { :root { --met: #35c9a0; --missed: #ff8a4c; } }
.bar { width: 180px; height: 14px; } .met { fill: var(--met); } .missed { fill: var(--missed); }
.goal { stroke: var(--ink); stroke-width: 2; } .track { fill: var(--rule); }
td.met { color: var(--met); font-weight: 600; } td.missed { color: var(--missed); font-weight: 600; }
code { overflow-wrap: anywhere; } dt { color: var(--soft); font-weight: 600; float: left; width: 9ch; clear: left; }
dd { margin: 0 0 2px 10ch; overflow-wrap: anywhere; } dl { margin: 0 0 12px; } dd ul { margin: 0; padding-left: 18px; }
.scroll:focus-visible { outline: 2px solid var(--s0); }
"""


def result_page(reports: Sequence[Report]) -> str:
    """REQUIRES: one report at least."""
    names = ", ".join(report.name for report in reports)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>kvpager bench: {escape(names)}</title>
<style>{STYLE}{_OWN_STYLE}</style>
</head>
<body>
<main>
<h1>kvpager bench: {escape(names)}</h1>
<p>A bar ends where the value is, the upright line is the target; what lies beyond twice the target is cut off.</p>
{"".join(_section(report) for report in reports)}
</main>
</body>
</html>
"""


def _section(report: Report) -> str:
    facts = {
        "targets": f"{report.met_text} met" if report.num_targets else "",
        "machine": escape(report.hardware),
        "versions": escape(report.versions_text),
        "seed": str(report.seed),
        "date": escape(report.date),
        "command": f"<code>{escape(report.command)}</code>" if report.command else "",
        "checked": _list(report.checks),
    }
    lines = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts.items() if text)
    return f"<section><h2>{escape(report.name)}</h2>\n<dl>{lines}</dl>\n{_table(report)}</section>\n"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def _table(report: Report) -> str:
    """Can be scrolled by keyboard where it is wider than the window."""
    head = "".join(f'<th scope="col"{_class(name)}>{name}</th>' for name in _COLUMNS)
    rows = "\n".join(_row(figure) for figure in report.figures)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Figures of {escape(report.name)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"
    )


def _class(column: str) -> str:
    return ' class="text"' if column in _TEXTS else ""


def _row(figure: Figure) -> str:
    return (
        f'<tr><th scope="row" class="text">{escape(figure.name)}</th><td>{figure.value_text}</td>'
        f'<td class="text">{escape(figure.unit)}</td><td>{escape(figure.target_text)}</td><td>{_bar(figure)}</td>'
        f'<td class="text {figure.verdict}">{figure.verdict}</td><td>{escape(figure.spread_text)}</td></tr>'
    )


def _bar(figure: Figure) -> str:
    """Nothing without a target, or with one of which no multiple can be drawn."""
    if not figure.target or not math.isfinite(figure.value) or figure.value / figure.target < 0:
        return ""
    times = figure.value / figure.target
    width, goal = _WIDTH * min(times, _MOST) / _MOST, _WIDTH / _MOST
    text = escape(f"{figure.name}: {times:.3g} times the target, {figure.verdict}")
    return (
        f'<svg class="bar" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text}"><title>{text}</title>'
        f'<rect class="track" y="5" width="{_WIDTH}" height="4"/>'
        f'<rect class="{figure.verdict}" y="2" width="{width:.1f}" height="10"/>'
        f'<line class="goal" x1="{goal:.0f}" x2="{goal:.0f}" y1="0" y2="{_HEIGHT}"/></svg>'
    )
