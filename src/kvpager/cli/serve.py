"""Serves a model over HTTP, as OpenAI's clients know it, with metrics and a page that shows the memory."""

import argparse

from kvpager.cli.arguments import add_common, chosen_options
from kvpager.config.server_options import ServerOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0: any free one")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    options = chosen_options(arguments)
    serving = ServerOptions(host=arguments.host, port=arguments.port)
    import uvicorn

    from kvpager.cli.session import open_engine
    from kvpager.server.app import create_app

    uvicorn.run(create_app(lambda: open_engine(options), serving), host=serving.host, port=serving.port)
    return 0
