"""Runs one benchmark, or all in turn, and shows the figures: a table, one JSON object, or a page. Without a name it
lists the benchmarks. Ends with 0 whether targets are met or not.
"""

import argparse
import json
import pkgutil
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from types import ModuleType

from kvpager.bench.recorded import Report, report_of
from kvpager.bench.report import stamped
from kvpager.bench.result_html import result_page
from kvpager.cli.arguments import add_common, chosen_options, did_you_mean
from kvpager.cli.bench_all import run_all
from kvpager.cli.bench_kept import require_places, show_kept
from kvpager.cli.table import format_table
from kvpager.errors import ConfigError

_PACKAGE = "kvpager.bench"
_ALL = "all"
_FOLDERS = ("folder", "traces", "parts")
_CHOICES = ("peers", "workloads", "precision", "share")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="which benchmark, or 'all'; left out: list them")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, the same figures, under a minute")
    parser.add_argument("--folder", metavar="DIR", help="where a benchmark that needs files puts them (tiers)")
    parser.add_argument("--traces", metavar="DIR", help="recorded traces, for a benchmark that replays them (policies)")
    parser.add_argument("--peers", metavar="NAMES", help="only these other engines, with commas between them (peers)")
    parser.add_argument("--workloads", metavar="NAMES", help="only these workloads, with commas between them (peers)")
    parser.add_argument("--precision", metavar="NAME", help="of weights and KV: bfloat16 or float32 (peers)")
    parser.add_argument("--share", metavar="PART", help="the part of each workload's requests to take, as 0.5 (peers)")
    parser.add_argument(
        "--parts", metavar="DIR", help="keep each workload there, and take those that are there (peers)"
    )
    parser.add_argument("--html", metavar="FILE", help="also write the figures as a page, complete in one file")
    parser.add_argument("--into", metavar="DIR", help="also write DIR/NAME.json; with 'all': one for each benchmark")
    kept = parser.add_argument_group("results that are on record (nothing is measured)")
    kept.add_argument(
        "--from", dest="kept", metavar="DIR", help="take the figures from DIR/*.json, as --into wrote them"
    )
    kept.add_argument("--fill", metavar="FILE", action="append", default=[], help="renew the tables in a Markdown page")
    kept.add_argument("--graph", metavar="FILE", help="draw tokens a second of kvpager and its peers, as SVG")
    add_common(parser, names=())


def run(arguments: argparse.Namespace) -> int:
    chosen_options(arguments)  # a benchmark has settings of its own, but a wrong file or variable is wrong everywhere
    if arguments.kept is not None:
        return show_kept(arguments)
    if arguments.fill or arguments.graph:
        raise ConfigError("--fill and --graph show results that are on record; name their folder: --from DIR")
    found = {module.__name__.rpartition(".")[2]: module for module in _benchmarks()}
    if arguments.name is None:
        _print_list(found, as_json=arguments.json)
        return 0
    if arguments.name == _ALL:
        return run_all(found, arguments)
    if arguments.name not in found:
        remedy = did_you_mean(arguments.name, found) if found else "none is installed"
        raise ConfigError(f"unknown benchmark {arguments.name!r}; {remedy}")
    require_places(arguments)
    record = found[arguments.name].run(arguments.quick, **_folders(found[arguments.name], arguments))
    record = stamped(record, _command(arguments), f"{datetime.now(UTC):%Y-%m-%d}")
    if arguments.into:
        Path(arguments.into, f"{record['name']}.json").write_text(json.dumps(record, indent=1) + "\n")
    if arguments.html:
        Path(arguments.html).write_text(result_page([report_of(record)]))
    print(json.dumps(record) if arguments.json else format_report(report_of(record)))
    return 0


# -- one benchmark -------------------------------------------------------------------------------------------------


def _command(arguments: argparse.Namespace) -> str:
    """What repeats the run. Folders are the caller's own, and not told."""
    words = ["kvpager bench", arguments.name]
    words += ["--quick"] if arguments.quick else []
    words += [f"--{name} DIR" for name in _FOLDERS if getattr(arguments, name) is not None]
    words += [f"--{name} {value}" for name in _CHOICES if (value := getattr(arguments, name)) is not None]
    return " ".join(words)


def _folders(module: ModuleType, arguments: argparse.Namespace) -> dict[str, str]:
    """The folders and choices that were given, for a benchmark that takes them."""
    names = (*_FOLDERS, *_CHOICES)
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    for name in given:
        if name not in signature(module.run).parameters:
            raise ConfigError(f"benchmark {arguments.name!r} uses no {name}; leave --{name} out")
    return given


def _benchmarks() -> Iterator[ModuleType]:
    """The modules of the bench package that can be run."""
    spec = find_spec(_PACKAGE)
    for found in pkgutil.iter_modules(spec.submodule_search_locations or [] if spec else []):
        try:
            module = import_module(f"{_PACKAGE}.{found.name}")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("kvpager"):
                raise
            continue  # what it measures needs a package that is not installed
        if callable(getattr(module, "run", None)):
            yield module


def _print_list(found: dict[str, ModuleType], *, as_json: bool) -> None:
    meanings = {name: (module.__doc__ or "").partition("\n")[0] for name, module in found.items()}
    if as_json:
        print(json.dumps(meanings))
    else:
        print(format_table([[name, meaning] for name, meaning in meanings.items()], ["benchmark", "what it measures"]))


# -- as text -------------------------------------------------------------------------------------------------------


def format_report(report: Report) -> str:
    """A report as text."""
    rows = [
        [figure.name, figure.value_text, figure.unit, number, _VERDICTS[figure.is_met]]
        for figure in report.figures
        for number in [figure.target_text.lstrip("≥≤ ")]
    ]
    return "\n".join(
        [
            f"{report.name} on {report.hardware}, seed {report.seed}",
            "  ".join(f"{name} {version}" for name, version in report.versions.items()),
            "",
            format_table(rows, ["figure", "value", "unit", "target", "met"], numeric=(1, 3)),
        ]
    )


_VERDICTS = {None: "", True: "yes", False: "no"}
