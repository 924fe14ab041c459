"""How commands read their arguments: flags made from the table of options, sampling flags, and helpful errors.

Knows argparse and how a flag, a TOML line and an environment variable come together (``load_options`` does it). Does
not know what any option does.
"""

import argparse
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import NoReturn

from kvpager.config import (
    OptionInfo,
    Options,
    ServerOptions,
    list_options,
    list_server_options,
    load_options,
    load_server_options,
)
from kvpager.engine.sampling_params import Sampling
from kvpager.errors import ConfigError

_OPTION = "option_"  # before the names of options in the parsed arguments, which have names of their own
_SERVER_OPTION = "server_"
_SOURCES = "also lines of --config FILE, or variables KVPAGER_NAME; a flag goes before both"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ConfigErrors with a suggestion, and that takes arguments in any order."""

    def __init__(self, *, prog: str, description: str | None, usage: str | None = None, epilog: str | None = None):
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments. Raises ConfigError for wrong ones, SystemExit(0) after --help."""
        # In any order, except beside "--", which argparse can't mix: what follows it is no flag.
        parse = self.parse_known_args if "--" in argv else self.parse_known_intermixed_args
        arguments, unknown = parse(argv)
        if unknown:
            word = unknown[0].partition("=")[0]
            hint = (
                did_you_mean(word, self._option_string_actions) if word.startswith("-") else f"see {self.prog} --help"
            )
            raise ConfigError(f"{self.prog} doesn't know {word!r}; {hint}")
        return arguments

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The remedy for an unknown word: the nearest known one, or else all of them."""
    candidates = [name for name in known if len(name) > 2]
    near = difflib.get_close_matches(word, candidates, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(candidates)}"


# -- what every command has ----------------------------------------------------------------------------------------


def add_common(parser: argparse.ArgumentParser, names: Iterable[str] | None = None) -> None:
    """Adds --json, --config and a flag for each option in ``names`` (None: for all)."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    add_config(parser)
    wanted = [row for row in list_options() if names is None or row.name in names]
    if wanted:
        group = parser.add_argument_group(f"options ({_SOURCES})")
        for row in wanted:
            _add_option(group, row, _OPTION)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each option of a server."""
    group = parser.add_argument_group(f"options of the server ({_SOURCES})")
    for row in list_server_options():
        _add_option(group, row, _SERVER_OPTION)


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds --config."""
    parser.add_argument("--config", metavar="FILE", help="a TOML file with options, one 'name = value' a line")


def _add_option(group: argparse._ArgumentGroup, row: OptionInfo, prefix: str) -> None:
    text = f"{row.meaning} Default: {row.written}.".replace("%", "%%")
    dest = prefix + row.name
    if row.is_switch:
        group.add_argument(row.flag, dest=dest, action=argparse.BooleanOptionalAction, default=None, help=text)
    else:
        action = "append" if row.is_list else "store"
        group.add_argument(row.flag, dest=dest, action=action, metavar="VALUE", help=text)


def chosen_options(arguments: argparse.Namespace) -> Options:
    """The options in force for these arguments: defaults, then --config, then the environment, then flags."""
    return load_options(arguments.config, overrides=_given(arguments, _OPTION))


def chosen_server_options(arguments: argparse.Namespace) -> ServerOptions:
    """The same for those of a server."""
    return load_server_options(arguments.config, overrides=_given(arguments, _SERVER_OPTION))


def _given(arguments: argparse.Namespace, prefix: str) -> dict[str, object]:
    return {name.removeprefix(prefix): value for name, value in vars(arguments).items() if name.startswith(prefix)}


# -- how answers are chosen ----------------------------------------------------------------------------------------

_SAMPLING: dict[str, tuple[type, str]] = {
    "max_tokens": (int, "tokens to generate at most"),
    "temperature": (float, "0: always the likeliest token; below 1 safer, above 1 more varied"),
    "top_k": (int, "draw among the K likeliest tokens; 0: among all"),
    "top_p": (float, "draw among the fewest likeliest tokens that together have this probability"),
    "min_p": (float, "drop tokens less likely than this share of the likeliest"),
    "repetition_penalty": (float, "above 1: tokens that were seen become less likely"),
    "presence_penalty": (float, "taken off the logit of each token that the answer contains"),
    "frequency_penalty": (float, "taken off the logit once per occurrence in the answer"),
    "n": (int, "independent answers to each prompt; they share its pages"),
}


def add_sampling(parser: argparse.ArgumentParser) -> None:
    defaults = {option.name: option.default for option in fields(Sampling)}
    group = parser.add_argument_group("sampling (--seed, below, makes draws repeatable)")
    for name, (kind, meaning) in _SAMPLING.items():
        text = f"{meaning} (default {defaults[name]})"
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, default=defaults[name], metavar="N", help=text)
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="ends the answer; may be repeated")
    group.add_argument("--ignore-eos", action="store_true", help="go on after the model's end token")


def chosen_sampling(arguments: argparse.Namespace) -> Sampling:
    """Raises ConfigError where a value is out of its range."""
    values = {name: getattr(arguments, name) for name in (*_SAMPLING, "ignore_eos")}
    return Sampling(stop=tuple(arguments.stop), **values)
