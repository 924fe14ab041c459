"""Flags made from the table of options, and where a value comes from: defaults, file, environment, flag."""

import argparse
from dataclasses import fields
from pathlib import Path

import pytest

from kvpager.cli.arguments import (
    Parser,
    add_common,
    add_sampling,
    chosen_options,
    chosen_sampling,
    did_you_mean,
)
from kvpager.config import DiskTier, HostTier, Options, list_options
from kvpager.engine.sampling_params import Sampling
from kvpager.errors import ConfigError


def _parser() -> Parser:
    parser = Parser(prog="kvpager test", description="A test.")
    parser.add_argument("words", nargs="*")
    add_sampling(parser)
    add_common(parser)
    return parser


def _options(*argv: str) -> Options:
    return chosen_options(_parser().parse(argv))


def _sampling(*argv: str) -> Sampling:
    return chosen_sampling(_parser().parse(argv))


# -- options -------------------------------------------------------------------------------------------------------


def test_without_arguments_the_defaults_hold() -> None:
    assert _options() == Options()


@pytest.mark.parametrize("row", list_options(), ids=lambda row: row.name)
def test_every_option_is_a_flag(row: object) -> None:
    help_text = _parser().format_help()
    assert f" {row.flag}" in help_text  # type: ignore[attr-defined]
    assert " ".join(row.meaning.split()) in " ".join(help_text.split()).replace("- ", "-")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--capacity", "80%"], "capacity", "80%"),
        (["--page-size", "16KiB"], "page_size", "16KiB"),
        (["--page-size", "64"], "page_size", 64),
        (["--max-context", "100"], "max_context", 100),
        (["--tier", "host=1GiB", "--tier=disk=/kv,size=2GiB"], "tiers", (HostTier("1GiB"), DiskTier("/kv", "2GiB"))),
        (["--load-deadline", "none"], "load_deadline", None),
        (["--seed", "none"], "seed", None),
        (["--deterministic"], "deterministic", True),
        (["--no-prefix-cache"], "prefix_cache", False),
        (["--eviction-threshold", "0.25"], "eviction_threshold", 0.25),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_flag_sets_its_option(argv: list[str], name: str, value: object) -> None:
    assert getattr(_options(*argv), name) == value
    assert getattr(Options(), name) != value


def test_file_then_environment_then_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kvpager.toml"
    file.write_text("max_running = 3\nmax_waiting = 30\nprefix_cache = false\n")
    argv = ["--config", str(file)]
    options = _options(*argv)
    assert (options.max_running, options.max_waiting, options.prefix_cache) == (3, 30, False)
    monkeypatch.setenv("KVPAGER_MAX_RUNNING", "4")
    monkeypatch.setenv("KVPAGER_PREFIX_CACHE", "true")
    options = _options(*argv)
    assert (options.max_running, options.max_waiting, options.prefix_cache) == (4, 30, True)
    options = _options(*argv, "--max-running", "5", "--no-prefix-cache")
    assert (options.max_running, options.max_waiting, options.prefix_cache) == (5, 30, False)


def test_an_unknown_key_of_the_file_is_suggested(tmp_path: Path) -> None:
    file = tmp_path / "kvpager.toml"
    file.write_text("capasity = '1GiB'\n")
    with pytest.raises(ConfigError, match=r"unknown option 'capasity' .*did you mean 'capacity'\?"):
        _options("--config", str(file))
    file.write_text("capacity = '1GiB'\n")
    assert _options("--config", str(file)).capacity == "1GiB"


def test_an_unknown_variable_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPAGER_MAX_RUNING", "4")
    with pytest.raises(ConfigError, match="did you mean 'KVPAGER_MAX_RUNNING'"):
        _options()
    monkeypatch.delenv("KVPAGER_MAX_RUNING")
    monkeypatch.setenv("KVPAGER_MAX_RUNNING", "4")
    assert _options().max_running == 4


def test_a_command_may_take_some_options_only() -> None:
    parser = Parser(prog="kvpager test", description="A test.")
    add_common(parser, names=("device",))
    assert chosen_options(parser.parse(["--device", "cpu"])).device == "cpu"
    with pytest.raises(ConfigError, match="doesn't know '--seed'"):
        parser.parse(["--seed", "1"])


# -- sampling ------------------------------------------------------------------------------------------------------


def test_without_arguments_sampling_is_the_default() -> None:
    assert _sampling() == Sampling()


def test_sampling_flags() -> None:
    argv = "--max-tokens 5 --temperature 0.5 --top-k 7 --top-p 0.9 --min-p 0.1 --n 3 --stop a --stop b --ignore-eos"
    expected = Sampling(
        max_tokens=5, temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, n=3, stop=("a", "b"), ignore_eos=True
    )
    assert _sampling(*argv.split()) == expected
    penalties = _sampling("--repetition-penalty", "1.5", "--presence-penalty", "0.5", "--frequency-penalty", "-1")
    assert penalties == Sampling(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=-1.0)


def test_no_flag_has_two_meanings() -> None:
    names = {option.name for option in fields(Options)} & {option.name for option in fields(Sampling)}
    assert names == {"seed"}  # one flag: the seed of requests that bring none, and those of the command line bring none
    assert not hasattr(_parser().parse([]), "seed")


# -- the parser ----------------------------------------------------------------------------------------------------


def test_flags_may_stand_between_words() -> None:
    arguments = _parser().parse(["one", "--n", "2", "two", "--json", "three"])
    assert (arguments.words, arguments.n, arguments.json) == (["one", "two", "three"], 2, True)


def test_after_two_dashes_everything_is_a_word() -> None:
    assert _parser().parse(["--json", "--", "--n"]).words == ["--n"]


def test_flags_can_not_be_shortened() -> None:
    with pytest.raises(ConfigError, match="did you mean '--max-tokens'"):
        _parser().parse(["--max-token", "3"])
    assert _parser().parse(["--max-tokens", "3"]).max_tokens == 3


@pytest.mark.parametrize(
    ("word", "told"), [("hlep", "did you mean 'help'?"), ("zzz", "known are help, list")], ids=["near", "far"]
)
def test_did_you_mean(word: str, told: str) -> None:
    assert did_you_mean(word, ["help", "list", "-h"]) == told


def test_every_choice_of_argparse_is_an_error_of_ours() -> None:
    parser = Parser(prog="kvpager test", description=None)
    parser.add_argument("--size", type=int, choices=[1, 2])
    with pytest.raises(ConfigError, match="invalid choice: 3"):
        parser.parse(["--size", "3"])
    assert isinstance(parser.parse(["--size", "2"]), argparse.Namespace)
