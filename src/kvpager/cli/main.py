"""The entry ``kvpager``: which commands there are, which one is meant, and how each ending becomes an exit code.

Exit codes: 0 done; 1 something failed while it ran; 2 the call, a setting, a request or a model is wrong (one line on
standard error); 130 stopped by Ctrl-C; 141 whoever read the output went away. Does not know what a command does: its
module is imported when it is called, so that ``kvpager --help`` loads nothing heavy.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from kvpager.cli.arguments import Parser, did_you_mean
from kvpager.errors import ConfigError, KVPagerError, MissingExtra, ModelError, RequestError
from kvpager.version import __version__

COMMANDS = {
    "run": "answer prompts and exit",
    "chat": "talk with a model",
    "serve": "answer over HTTP, as OpenAI's clients know it",
    "top": "the memory of a running server, live in the terminal",
    "demo": "real prompts in a small pool, with a live view of its blocks",
    "model": "fetch, list, check and remove models",
    "disk": "what a disk tier keeps in its folder: check it, empty it",
    "prefix": "carry the KV of a prompt in a file",
    "replay": "what a cache would have hit, from a recorded trace",
    "trace": "record the requests of a command, see what is in a trace, convert one",
    "metrics": "alerts for Prometheus, a dashboard for Grafana",
    "doctor": "what this machine offers, and what is missing",
    "bench": "measure, as a table or as JSON",
}
_MODULES = {"demo": "kvpager.cli.demo.command"}

DONE, FAILED, WRONG, INTERRUPTED, READER_GONE = 0, 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    try:
        code = dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except SystemExit as done:  # --help and --version
        return int(done.code or DONE)
    except KeyboardInterrupt:
        print("kvpager: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return READER_GONE
    except (ConfigError, RequestError, ModelError, MissingExtra) as error:
        return _report(error, WRONG)
    except KVPagerError as error:
        return _report(error, FAILED)


def dispatch(argv: list[str]) -> int:
    """Runs one command; its errors are raised."""
    if not argv or argv[0].startswith("-"):
        _parse_without_command(argv)
    name, rest = argv[0], argv[1:]
    if name not in COMMANDS:
        raise ConfigError(f"unknown command {name!r}; {did_you_mean(name, COMMANDS)}")
    command = import_module(_MODULES.get(name, f"kvpager.cli.{name}"))
    parser = Parser(prog=f"kvpager {name}", description=command.__doc__)
    command.add_arguments(parser)
    code: int = command.run(parser.parse(rest))
    return code


def _parse_without_command(argv: list[str]) -> NoReturn:
    """Answers --help and --version; anything else is an error, and so is nothing at all."""
    listing = "\n".join(f"  {name:8}{meaning}" for name, meaning in COMMANDS.items())
    parser = Parser(
        prog="kvpager",
        usage="kvpager COMMAND [ARGUMENTS]",
        description="Virtual memory for LLM inference.",
        epilog=f"commands:\n{listing}\n\nEvery command explains itself: kvpager COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"kvpager {__version__}")
    parser.parse(argv)
    raise ConfigError(f"no command given; choose one of {', '.join(COMMANDS)}, or see kvpager --help")


def _report(error: Exception, code: int) -> int:
    """The exit code of an error, after saying what it is, or of the Ctrl-C that led to it."""
    if _is_led_to_by(error, KeyboardInterrupt):
        return INTERRUPTED
    print(f"kvpager: error: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _is_led_to_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None and not isinstance(error, kind):
        error = error.__context__
    return error is not None


def _silence_stdout() -> None:
    """What is still buffered goes nowhere, so that the interpreter's last flush doesn't fail again."""
    with suppress(OSError, ValueError):  # a stream without a descriptor has nothing to flush into
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
