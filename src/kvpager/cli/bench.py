"""Runs one benchmark and prints its figures: a table, or one JSON object with --json. Ends with 0 whether targets are
met or not. Without a name it lists the benchmarks.
"""

import argparse
import json
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from types import ModuleType

from kvpager.cli.arguments import add_common, chosen_options, did_you_mean
from kvpager.cli.table import format_table
from kvpager.errors import ConfigError

_PACKAGE = "kvpager.bench"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="which benchmark; left out: list them")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, the same figures, under a minute")
    parser.add_argument("--folder", metavar="DIR", help="where a benchmark that needs files puts them (tiers)")
    parser.add_argument("--traces", metavar="DIR", help="recorded traces, for a benchmark that replays them (policies)")
    add_common(parser, names=())


def run(arguments: argparse.Namespace) -> int:
    chosen_options(arguments)  # a benchmark has settings of its own, but a wrong file or variable is wrong everywhere
    found = {module.__name__.rpartition(".")[2]: module for module in _benchmarks()}
    if arguments.name is None:
        _print_list(found, as_json=arguments.json)
        return 0
    if arguments.name not in found:
        remedy = did_you_mean(arguments.name, found) if found else "none is installed"
        raise ConfigError(f"unknown benchmark {arguments.name!r}; {remedy}")
    report = found[arguments.name].run(arguments.quick, **_folders(found[arguments.name], arguments))
    print(json.dumps(report) if arguments.json else format_report(report))
    return 0


def _folders(module: ModuleType, arguments: argparse.Namespace) -> dict[str, str]:
    """The folders that were given, for a benchmark that takes them."""
    given = {name: path for name in ("folder", "traces") if (path := getattr(arguments, name)) is not None}
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


def format_report(report: dict[str, object]) -> str:
    """The object a benchmark returns, as text."""
    results = report["results"]
    assert isinstance(results, list)
    rows = [
        [str(r["name"]), _figure(r["value"]), str(r["unit"]), _figure(r.get("target")), _verdict(r.get("met"))]
        for r in results
    ]
    versions = report.get("versions") or {}
    assert isinstance(versions, dict)
    return "\n".join(
        [
            f"{report['name']} on {report['hardware']}, seed {report['seed']}",
            "  ".join(f"{name} {version}" for name, version in versions.items()),
            "",
            format_table(rows, ["figure", "value", "unit", "target", "met"], numeric=(1, 3)),
        ]
    )


def _figure(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)


def _verdict(met: object) -> str:
    return "" if met is None else "yes" if met else "no"
