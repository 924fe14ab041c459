"""Shows results of benchmarks that are on record: a summary, a page, tables in Markdown, the picture of the peers.

Measures nothing, and knows no benchmark.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from kvpager.bench.filled_pages import filled
from kvpager.bench.peer_speeds import speeds_of, speeds_picture
from kvpager.bench.recorded import Report, read_reports
from kvpager.bench.result_html import result_page
from kvpager.cli.table import format_table
from kvpager.errors import ConfigError


def require_places(arguments: argparse.Namespace) -> None:
    """What is written in the end has a place: checked before minutes of work. Raises ConfigError."""
    if arguments.into and not Path(arguments.into).is_dir():
        raise ConfigError(f"--into {arguments.into} is no folder; make it first")
    for flag in ("html", "graph"):
        path = getattr(arguments, flag)
        if path and (not Path(path).parent.is_dir() or Path(path).is_dir()):
            raise ConfigError(f"--{flag} {path} is no file in a folder that exists; make the folder, name a file in it")


def show_kept(arguments: argparse.Namespace) -> int:
    """``kvpager bench --from DIR``."""
    if arguments.name is not None or arguments.into or arguments.quick:
        raise ConfigError("--from measures nothing; leave out the name of a benchmark, --into and --quick")
    require_places(arguments)
    reports = read_reports(Path(arguments.kept))
    for path in map(Path, arguments.fill):
        try:
            path.write_text(filled(path.read_text(encoding="utf-8"), reports), encoding="utf-8")
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            raise ConfigError(f"--fill {path}: {error}") from error
    if arguments.graph:
        _draw(reports, Path(arguments.graph))
    show_all(reports, arguments)
    return 0


def _draw(reports: Sequence[Report], path: Path) -> None:
    if speeds := speeds_of(reports):
        path.write_text(speeds_picture(speeds), encoding="utf-8")
    else:
        print(f"no result of peers is among them: {path} is left as it is", file=sys.stderr)


def show_all(reports: Sequence[Report], arguments: argparse.Namespace) -> None:
    """A line for each report, or with --json all their figures by name; and the page, if one is asked for."""
    if arguments.html:
        Path(arguments.html).write_text(result_page(reports), encoding="utf-8")
    if arguments.json:
        print(json.dumps({report.name: {figure.name: figure.value for figure in report.figures} for report in reports}))
        return
    rows = [
        [report.name, str(len(report.figures)), report.met_text, ", ".join(figure.name for figure in report.missed)]
        for report in reports
    ]
    print(format_table(rows, ["benchmark", "figures", "targets met", "missed"], numeric=(1,)))
