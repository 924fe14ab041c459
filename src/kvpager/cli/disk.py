"""The folder of a disk tier: what it holds, whether every byte is right, and how to empty it.

'stat' and 'verify' may run while a cache uses the folder; 'clear' then refuses. Exit code 1 if 'verify' finds damage.
"""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from kvpager.cli.arguments import add_common, chosen_options, did_you_mean
from kvpager.cli.table import format_table
from kvpager.config import format_size
from kvpager.errors import ConfigError

if TYPE_CHECKING:
    from kvpager.tiers.disk.examine import FolderReport

_ACTIONS = ("verify", "stat", "clear")
_ACTIONS_HELP = """actions:
  stat FOLDER     the slabs in the folder, and how many pages they hold
  verify FOLDER   the same, after reading every page and comparing its checksum
  clear FOLDER    remove every slab and every named session"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _ACTIONS_HELP
    parser.add_argument("action", metavar="ACTION", help=", ".join(_ACTIONS))
    parser.add_argument("folder", metavar="FOLDER", help="the folder that was given to the disk tier")
    add_common(parser, names=())


def run(arguments: argparse.Namespace) -> int:
    from kvpager.tiers.disk import examine

    chosen_options(arguments)  # nothing here needs them, but a wrong file or variable is wrong everywhere
    action, folder = arguments.action, arguments.folder
    if action not in _ACTIONS:
        raise ConfigError(f"unknown action {action!r}; {did_you_mean(action, _ACTIONS)}")
    look = {"verify": examine.verify, "stat": examine.describe, "clear": examine.clear}[action]
    report = look(folder)
    if arguments.json:
        print(json.dumps(asdict(report) | {"whole": report.is_whole}))
    else:
        print(_as_text(report, action))
    return 1 if action == "verify" and not report.is_whole else 0


def _as_text(report: "FolderReport", action: str) -> str:
    rows = [
        [slab.name, slab.state, format_size(slab.file_bytes), str(slab.slots), str(slab.pages), str(slab.damaged)]
        for slab in report.slabs
    ]
    header = ("slab", "state", "size", "slots", "pages", "damaged")
    lines = [format_table(rows, header, numeric=(2, 3, 4, 5))] if rows else []
    lines += [f"wrong: {place}" for place in report.wrong]
    verb = "removed " if action == "clear" else ""
    damaged = f", {report.damaged} damaged" if report.damaged else ""
    lines.append(f"{verb}{report.pages} pages in {format_size(report.file_bytes)}{damaged}")
    return "\n".join(lines)
