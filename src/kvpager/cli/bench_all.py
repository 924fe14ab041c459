"""Runs all benchmarks one after the other, each by a command of its own: none finds what another left, and one that
fails, or is killed, does not end the rest. Does not know what they measure.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from types import ModuleType

from kvpager.bench.recorded import read_reports
from kvpager.cli.bench_kept import require_places, show_all
from kvpager.errors import ConfigError


def run_all(found: Mapping[str, ModuleType], arguments: argparse.Namespace) -> int:
    """Ends with 1 if one failed."""
    if not arguments.into:
        raise ConfigError("the results of all benchmarks need a folder: --into DIR")
    require_places(arguments)
    failed = []
    for name, module in found.items():
        print(f"== {name}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "kvpager.cli.main", "bench", name, *_flags(module, arguments)]
        if subprocess.run(command, stdout=sys.stderr).returncode:  # what it prints is seen, and not taken for ours
            failed.append(name)
    done = set(found) - set(failed)
    if done:
        show_all([report for report in read_reports(Path(arguments.into)) if report.name in done], arguments)
    for name in failed:
        print(f"{name} failed: its output above says why", file=sys.stderr)
    return 1 if failed else 0


def _flags(module: ModuleType, arguments: argparse.Namespace) -> list[str]:
    """The folders only for those that use them."""
    given = [name for name in ("folder", "traces") if getattr(arguments, name) is not None]
    used = [name for name in given if name in signature(module.run).parameters]
    quick = ["--quick"] if arguments.quick else []
    return [f"--into={arguments.into}", *quick, *(f"--{name}={getattr(arguments, name)}" for name in used)]
