"""Markdown pages whose tables of figures are made from recorded reports; all other text of them is written by hand.

    <!-- figures kernels -->      what stands between the two lines is replaced by the report of that name
    <!-- /figures -->
    <!-- peers -->                and here by what all engines reach, with the command that repeats the run
    <!-- /peers -->

Knows no file: text and reports in, text out.
"""

import re
from collections.abc import Mapping, Sequence

from kvpager.bench.peer_speeds import engines_of, measures_table, speeds_of, speeds_table
from kvpager.bench.recorded import Figure, Report
from kvpager.errors import ConfigError

_FIGURES = re.compile(r"(<!-- figures (\S+) -->\n).*?(<!-- /figures -->)", re.DOTALL)
_PEERS = re.compile(r"(<!-- peers -->\n).*?(<!-- /peers -->)", re.DOTALL)
_MOST = 24  # rows without a target that stand open
_HEAD = "| figure | value | unit | target | | quartiles |\n|---|---|---|---|---|---|"


def named_in(page: str) -> list[str]:
    """The reports whose figures the page shows."""
    return [match[2] for match in _FIGURES.finditer(page)]


def filled(page: str, reports: Sequence[Report]) -> str:
    """The page with the tables of these reports. Raises ConfigError for a page that has no place for any."""
    if not _FIGURES.search(page) and not _PEERS.search(page):
        raise ConfigError("the page has no line <!-- figures NAME --> or <!-- peers -->; add one and its closing line")
    by_name = {report.name: report for report in reports}
    page = _FIGURES.sub(lambda match: f"{match[1]}{_figures(match[2], by_name)}\n{match[3]}", page)
    return _PEERS.sub(lambda match: f"{match[1]}{_peers(reports)}\n{match[2]}", page)


def _figures(name: str, reports: Mapping[str, Report]) -> str:
    if name not in reports:
        return f"No run is on record; `kvpager bench {name}` makes one."
    report = reports[name]
    aims = [figure for figure in report.figures if figure.target is not None]
    others = [figure for figure in report.figures if figure.target is None]
    if not aims or len(others) <= _MOST:
        return f"{_about(report)}\n\n{_table(report.figures)}"
    more = f"<summary>{len(others)} more figures</summary>\n\n{_table(others)}"
    return f'{_about(report)}\n\n{_table(aims)}\n\n<details markdown="1">\n{more}\n\n</details>'


def _table(figures: Sequence[Figure]) -> str:
    return "\n".join([_HEAD, *(_row(figure) for figure in figures)])


def _about(report: Report) -> str:
    """Targets first, the missed ones by name; then what was checked, and where and how it ran."""
    lines = []
    if report.num_targets:
        lines.append(f"{report.met_text} targets met.")
    if report.missed:
        lines.append(f"**Missed: {', '.join(f'`{figure.name}`' for figure in report.missed)}.**")
    if report.checks:
        lines.append(f"Checked: {'; '.join(report.checks)}.")
    lines.append(_ran(report))
    return "\n".join(lines)


def _ran(report: Report) -> str:
    date = f"{report.date}, " if report.date else ""
    again = f" Again: `{report.command}`." if report.command else ""
    return f"{date}{report.hardware}; {report.versions_text}; seed {report.seed}.{again}"


def _row(figure: Figure) -> str:
    verdict = "**missed**" if figure.is_met is False else figure.verdict
    cells = (f"`{figure.name}`", figure.value_text, figure.unit, figure.target_text, verdict, figure.spread_text)
    return f"| {' | '.join(cells)} |"


def _peers(reports: Sequence[Report]) -> str:
    found = []
    for report in reports:
        if speeds := speeds_of([report]):
            found += [speeds_table(speeds), measures_table([report], engines_of(speeds)), _ran(report)]
    return "\n\n".join(filter(None, found)) or "No run is on record; `kvpager bench peers` makes one."
