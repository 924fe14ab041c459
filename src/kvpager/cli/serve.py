"""Serves a model over HTTP, as OpenAI's clients know it, with metrics and a page that shows the memory. SIGTERM and
Ctrl-C end it once the requests under way have ended; a second one at once.
"""

import argparse
import json
import logging
import sys
from typing import TYPE_CHECKING

from kvpager.cli.arguments import add_common, add_server_options, chosen_options, chosen_server_options
from kvpager.errors import ConfigError, MissingExtra
from kvpager.server.listening import bind

if TYPE_CHECKING:
    from kvpager.server.start_block import Start

_EXTRA = ("fastapi", "starlette", "uvicorn", "h11", "sse_starlette", "prometheus_client", "llguidance", "pydantic")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("positional_model", nargs="?", metavar="MODEL", help="the same as --model")
    add_server_options(parser)
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.positional_model is not None:
        if arguments.option_model is not None:
            raise ConfigError("the model is given twice: as an argument and with --model")
        arguments.option_model = arguments.positional_model
    options, serving = chosen_options(arguments), chosen_server_options(arguments)
    _log_to_standard_error()

    def say(start: "Start") -> None:
        print(json.dumps(start.as_json()) if arguments.json else start, flush=True)

    with bind(serving) as bound:
        from kvpager.cli.session import open_engine

        try:
            from kvpager.server.run import serve
        except ModuleNotFoundError as error:
            if error.name not in _EXTRA:
                raise
            raise MissingExtra(error.name, "server", "serving a model") from error
        return 0 if serve(lambda: open_engine(options), serving, bound, say) else 1


def _log_to_standard_error() -> None:
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level="WARNING")
    logging.getLogger("kvpager").setLevel(logging.INFO)
