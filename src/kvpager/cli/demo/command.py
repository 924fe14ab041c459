"""Runs real prompts together in a pool that is too small for them, and shows what becomes of its blocks.

In a terminal the view is live; elsewhere progress is printed in plain lines. At the end the run is compared with
contiguous reservation. The pool is small on purpose, unless --capacity gives another size.
"""

import argparse
import json
import sys
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from kvpager.cli.arguments import add_common, chosen_options
from kvpager.cli.demo.comparison import Asked, Comparison, Pool, peak_of
from kvpager.cli.demo.frame import Frame, observe
from kvpager.cli.demo.prompts import PROMPTS, QUICK_PROMPTS, DemoPrompt
from kvpager.cli.prompts import encode_prompt, has_chat_template
from kvpager.config import AUTO, Options, format_size

if TYPE_CHECKING:
    from kvpager.engine.engine import Engine
    from kvpager.engine.request import Request

POOL_TOKENS, QUICK_POOL_TOKENS = 1792, 640  # about a third of what all requests together may come to
MAX_TOKENS, QUICK_MAX_TOKENS = 96, 24
_POOL_BLOCKS = 112  # where the page size is given in bytes
_TEMPERATURE = 0.7  # for requests with several choices: greedy ones would all be the same
_RATE_SECONDS = 2.0  # the tokens per second of the live view are those of this last stretch
_LINE_SECONDS = 2.0  # between two lines of plain progress
_DRAW_SECONDS = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer and shorter answers")
    parser.add_argument("--fetch", action="store_true", help="fetch the model first if it is not there")
    parser.add_argument("--plain", action="store_true", help="progress in plain lines, in a terminal too")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    options = chosen_options(arguments)
    if arguments.fetch:
        _fetch(options.model)
    from kvpager.cli.session import open_engine

    _say(f"loading {options.model} ...")
    with open_engine(options, num_blocks=_num_blocks(options, arguments.quick)) as engine:
        show = _shower(engine, options, is_live=_is_live(arguments))
        run = Demonstration(engine, QUICK_PROMPTS if arguments.quick else PROMPTS, arguments.quick)
        comparison = run.play(show)
        if arguments.json:
            print(json.dumps(run.as_dict(comparison)))
        else:
            print("\n".join(["", run.summary(), "", *comparison.lines()]))
    return 0
