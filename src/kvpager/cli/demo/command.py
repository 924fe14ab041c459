"""Runs real prompts together in a pool that is too small for them, and shows what becomes of its blocks.

In a terminal the view is live; elsewhere progress is printed in plain lines. At the end the run is compared with
contiguous reservation. The pool is small on purpose, unless --capacity gives another size.
"""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from kvpager.cli.arguments import add_common, chosen_options
from kvpager.cli.demo.prompts import FULL, QUICK, Programme
from kvpager.config import AUTO, Options

if TYPE_CHECKING:
    from kvpager.cli.demo.screen import Screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer and shorter answers")
    parser.add_argument("--fetch", action="store_true", help="fetch the model first if it is not there")
    parser.add_argument("--plain", action="store_true", help="progress in plain lines, in a terminal too")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    options = chosen_options(arguments)
    programme = QUICK if arguments.quick else FULL
    if arguments.fetch:
        _fetch(options.model)
    from kvpager.cli.demo.demonstration import Demonstration
    from kvpager.cli.session import interruptible, open_engine

    print(f"loading {options.model} ...", file=sys.stderr, flush=True)
    with open_engine(options, num_blocks=num_blocks(options, programme)) as engine:
        demonstration = Demonstration(engine, programme)
        with _screen(arguments, demonstration.title) as screen, interruptible() as interruption:
            demonstration.play(screen, interruption)
        comparison = demonstration.compare()
        if arguments.json:
            print(json.dumps(demonstration.as_dict() | comparison.as_dict()))
        else:
            screen.conclude(comparison.peak)
            print("\n".join(["", demonstration.summary(), "", *comparison.lines()]))
    return 0


def num_blocks(options: Options, programme: Programme) -> int | None:
    """The size of the small pool; None where the user asked for another one."""
    if str(options.capacity).strip().lower() != AUTO:
        return None
    page_size = options.page_size
    return max(1, programme.pool_tokens // (page_size if isinstance(page_size, int) else programme.usual_page))


def _screen(arguments: argparse.Namespace, title: str) -> "Screen":
    from kvpager.cli.demo.screen import PlainLines, open_screen

    if arguments.json or arguments.plain:
        return PlainLines(sys.stderr if arguments.json else sys.stdout)
    return open_screen(title)


def _fetch(model: str) -> None:
    from kvpager.models.source import resolve

    resolve(model, download=True)
