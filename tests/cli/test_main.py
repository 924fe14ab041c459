"""The entry: help without weight, exit codes, errors in one line, and readers who go away."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module

import pytest

from kvpager.cli import main as entry
from kvpager.cli.main import COMMANDS, main
from kvpager.errors import InvariantError, KVPagerError, OutOfBlocks
from kvpager.version import __version__

HEAVY = {"torch", "transformers", "numpy", "rich", "tokenizers"}


def _run(*argv: str, **options: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "kvpager.cli.main", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload, no-any-return]


# -- help ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [["--help"], ["--version"], *[[name, "--help"] for name in COMMANDS]], ids=" ".join)
def test_help_loads_nothing_heavy(argv: list[str]) -> None:
    code = f"import sys; from kvpager.cli.main import main; code = main({argv!r})\n"
    code += f"print('LOADED', *sorted({HEAVY!r} & set(sys.modules))); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED"


def test_what_loads_torch_is_seen() -> None:
    code = f"import sys, kvpager.attention; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert "torch" in done.stdout.split()


def test_help_names_every_command(kvpager: Callable[..., object]) -> None:
    ended = kvpager("--help")
    assert ended.code == 0
    assert all(f"  {name} " in ended.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_json_and_config(name: str, kvpager: Callable[..., object]) -> None:
    ended = kvpager(name, "--help")
    assert ended.code == 0
    assert f"kvpager {name}" in ended.out
    assert "--json" in ended.out
    assert "--config FILE" in ended.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_module_that_says_what_it_does(name: str) -> None:
    module = import_module(entry._MODULES.get(name, f"kvpager.cli.{name}"))
    assert module.__doc__
    assert callable(module.add_arguments)
    assert callable(module.run)


def test_version(kvpager: Callable[..., object]) -> None:
    ended = kvpager("--version")
    assert (ended.code, ended.out) == (0, f"kvpager {__version__}\n")


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "no command given; choose one of run, chat, serve"),
        (["rum"], "unknown command 'rum'; did you mean 'run'?"),
        (["doktor"], "did you mean 'doctor'?"),
        (["xyzzy"], "known are run, chat"),
        (["--versoin"], "did you mean '--version'?"),
        (["run", "--max-tokn", "3", "hi"], "kvpager run doesn't know '--max-tokn'; did you mean '--max-tokens'?"),
        (["run", "--capasity=1GiB", "hi"], "did you mean '--capacity'?"),
        (["run", "--max-tokens", "many", "hi"], "argument --max-tokens: invalid int value: 'many'"),
        (["run", "--max-tokens"], "--max-tokens: expected one argument"),
        (["run", "--chat", "--raw", "hi"], "not allowed with argument"),
        (["doctor", "now"], "kvpager doctor doesn't know 'now'; see kvpager doctor --help"),
        (["run", "--max-tokens=-1", "hi"], "max_tokens"),
        (["run", "--capacity", "2QiB", "hi"], "capacity"),
        (["run", "--config", "nowhere.toml", "hi"], "nowhere.toml can't be read"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_a_wrong_call_is_one_line_and_code_2(argv: list[str], told: str, kvpager: Callable[..., object]) -> None:
    ended = kvpager(*argv)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("kvpager: error: ")
    assert ended.err.count("\n") == 1
    assert told in ended.err


def _failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def raise_it(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr(entry, "dispatch", raise_it)


@pytest.mark.parametrize("error", [OutOfBlocks(3, 1, 0, 1, 4), KVPagerError("two\nlines"), InvariantError("books")])
def test_what_fails_while_it_runs_is_code_1(error: Exception, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    _failing(monkeypatch, error)
    assert main([]) == 1
    assert capsys.readouterr().err == f"kvpager: error: {' '.join(str(error).split())}\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(monkeypatch, ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        main([])


def test_ctrl_c_is_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _failing(monkeypatch, KeyboardInterrupt())
    assert main([]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_an_error_that_ctrl_c_led_to_is_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    error = KVPagerError("closed too early")
    error.__context__ = KeyboardInterrupt()
    _failing(monkeypatch, error)
    assert main([]) == 130


# -- as a process --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "code"), [(["--version"], 0), (["rum"], 2), (["model", "path", "./nowhere"], 2)], ids=["0", "2", "model"]
)
def test_exit_codes_of_the_process(argv: list[str], code: int) -> None:
    done = _run(*argv)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("kvpager: error: ") == (code == 2)


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    code = "import sys; from kvpager.cli import main as m\n"
    code += "m.dispatch = lambda argv: [print('x' * 1000) for _ in range(10_000)] and 0\nsys.exit(m.main([]))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


@pytest.mark.slow
def test_ctrl_c_stops_a_run_in_order(model: str) -> None:
    argv = [sys.executable, "-m", "kvpager.cli.main", "run", "--model", model, "--json", "--ignore-eos"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*argv, "--max-tokens", "100", "--max-running", "2", *["go on"] * 200],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("{")  # many more are under way
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=200)
    assert process.returncode == 130
    assert errors == "kvpager: stopped\n"
