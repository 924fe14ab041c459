"""The memory of a running server, live in the terminal: tiers, block map, faults, requests, alerts. Ctrl-C ends.

Without a terminal it prints a line every two seconds. The key of an operator, where the server asks for one, comes from
--key-file or from KVPAGER_API_KEY; never from an argument, which others could see.
"""

import argparse
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvpager.cli.arguments import add_common, chosen_options
from kvpager.cli.top_lines import Lines, Screen, as_json_line, format_line, summary
from kvpager.config import reserved_variables
from kvpager.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from kvpager.cli.top_source import FrameSource
    from kvpager.metrics.frames import Frame

_LINE_SECONDS = 2.0
_RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)  # between tries, once it was there
_VARIABLE = "KVPAGER_API_KEY"
_MAX_KEY = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="of the server, such as http://127.0.0.1:8000")
    parser.add_argument("--key-file", metavar="FILE", type=Path, help="a file whose first line is an operator's key")
    parser.add_argument("--once", action="store_true", help="show the memory as it is now, and end")
    add_common(parser, names=())


def run(arguments: argparse.Namespace) -> int:
    from kvpager.cli.top_source import FrameSource, read_address

    chosen_options(arguments)  # none matters here, but a wrong one is told
    source = FrameSource(read_address(arguments.url), _key(arguments.key_file))
    if arguments.once:
        _show_once(source.latest(), as_json=arguments.json)
        return 0
    with _open_screen(as_json=arguments.json) as screen, suppress(KeyboardInterrupt):  # how one ends it
        _watch(source, screen)
    return 0


def _key(file: Path | None) -> str | None:
    if file is None:
        return reserved_variables().get(_VARIABLE) or None
    try:
        with file.open(encoding="ascii") as opened:
            key = opened.readline(_MAX_KEY).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read a key from {file}: {type(error).__name__}") from None
    if not key.isprintable() or not key or " " in key:
        raise ConfigError(f"the first line of {file} is no key")
    return key


def _watch(source: "FrameSource", screen: Screen) -> None:
    """For ever. What goes wrong at the first try is raised; a server that was there is waited for."""
    from kvpager.cli.top_source import ServerAway

    was_there, tries = False, 0
    while True:
        try:
            for frame in source.frames():
                was_there, tries = True, 0
                screen.show(frame)
        except ServerAway as error:
            if not was_there:
                raise
            screen.lost(str(error))
        time.sleep(_RETRY_SECONDS[min(tries, len(_RETRY_SECONDS) - 1)])
        tries += 1


def _show_once(frame: "Frame", *, as_json: bool) -> None:
    if as_json:
        print(as_json_line(frame))
    elif (console := _console()) is not None:
        from kvpager.cli.top_view import TopView

        console.print(TopView(frame))
    else:
        print("\n".join(summary(frame)))


def _open_screen(*, as_json: bool) -> Screen:
    if as_json:
        return Lines(sys.stdout, as_json_line, seconds=0.0)
    console = _console()
    if console is None:
        return Lines(sys.stdout, format_line, seconds=_LINE_SECONDS)
    from kvpager.cli.top_view import LiveTop

    return LiveTop(console)


def _console() -> "Console | None":
    """None where lines are the better thing: no terminal, or no rich."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        print("the live view needs the package 'rich': pip install 'kvpager[cli]'", file=sys.stderr)
        return None
    return Console(highlight=False)
