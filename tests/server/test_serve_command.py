"""``kvpager serve``: what it takes, what it says when it starts and while it runs, and how it fails to start.

Signals, and a process of its own, are in tests/cases/test_O30.py.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvpager.cli.arguments import Parser, chosen_options, chosen_server_options
from kvpager.cli.main import main
from kvpager.cli.serve import add_arguments
from kvpager.config import DiskTier, HostTier, Options, list_server_options
from kvpager.config.tiers import RemoteTier
from kvpager.engine.engine import Engine
from kvpager.metrics.snapshot import take
from kvpager.server import run as server_run
from kvpager.server.start_block import Start, describe_start
from kvpager.server.status_line import status_line
from tests.server.threads import ask, at_rest, running_thread

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kvpager(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a command: its exit code, and what it wrote."""
    monkeypatch.setenv("KVPAGER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KVPAGER_API_KEY", raising=False)

    def call(*argv: str) -> tuple[int, str, str]:
        code = main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


# -- flags ---------------------------------------------------------------------------------------------------------


def _parsed(*argv: str) -> Parser:
    parser = Parser(prog="kvpager serve", description=None)
    add_arguments(parser)
    return parser.parse(argv)  # type: ignore[return-value]


def test_flags_of_both_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPAGER_DRAIN_SECONDS", "3")
    arguments = _parsed("--port", "9", "--no-page", "--max-running", "7", "--api-keys", "keys")
    serving, options = chosen_server_options(arguments), chosen_options(arguments)  # type: ignore[arg-type]
    assert (serving.port, serving.page, serving.api_keys, serving.drain_seconds) == (9, False, Path("keys"), 3)
    assert options.max_running == 7


def test_help_has_every_option_of_the_server(kvpager: Run) -> None:
    code, out, _ = kvpager("serve", "--help")
    assert code == 0
    assert all(f" {row.flag}" in out for row in list_server_options())


# -- a start that fails --------------------------------------------------------------------------------------------


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def _is_one_line(err: str, told: str) -> None:
    lines = [line for line in err.splitlines() if line.startswith("kvpager: error: ")]
    assert len(lines) == 1
    assert told in lines[0]
    assert "Traceback" not in err


def test_a_port_that_is_taken(kvpager: Run, taken_port: int) -> None:
    code, _, err = kvpager("serve", "nothing-is-loaded", "--port", str(taken_port))
    assert code == 2
    _is_one_line(err, f"can't listen on 127.0.0.1 port {taken_port}: address already in use; give another --port")


def test_an_address_that_is_not_ours(kvpager: Run) -> None:
    code, _, err = kvpager("serve", "--host", "no.such.name.invalid")
    assert code == 2
    _is_one_line(err, "can't listen on no.such.name.invalid")


def test_an_open_address_without_a_key(kvpager: Run) -> None:
    code, _, err = kvpager("serve", "--host", "0.0.0.0", "--port", "0")
    assert code == 2
    _is_one_line(err, "--allow-open-bind")


def test_a_model_that_is_not_there(kvpager: Run, tmp_path: Path) -> None:
    code, out, err = kvpager("serve", str(tmp_path / "no-model"), "--port", "0")
    assert (code, out) == (2, "")
    _is_one_line(err, "no-model")


def test_what_fails_after_the_model_is_loaded(kvpager: Run, model: str, taken_port: int) -> None:
    pytest.importorskip("zmq")
    code, out, err = kvpager(
        "serve", model, "--port", "0", "--capacity", "1MiB", "--events", f"tcp://127.0.0.1:{taken_port}"
    )
    assert (code, out) == (2, "")
    _is_one_line(err, f"tcp://127.0.0.1:{taken_port} can't be bound")


def test_a_model_that_is_given_twice(kvpager: Run) -> None:
    code, _, err = kvpager("serve", "one", "--model", "two")
    assert code == 2
    _is_one_line(err, "the model is given twice")


def test_what_fails_leaves_the_process_as_it_was(kvpager: Run, tmp_path: Path) -> None:
    import sys

    before = sys.getswitchinterval()
    kvpager("serve", str(tmp_path / "no-model"), "--port", "0")
    assert sys.getswitchinterval() == before


# -- what it says --------------------------------------------------------------------------------------------------


def _start(engine: Engine, url: str = "http://127.0.0.1:8000", *, keys: bool = False) -> Start:
    return describe_start(engine, served_name="tiny", url=url, has_page=True, asks_for_keys=keys)


@pytest.fixture
def engine(model: str, tmp_path: Path) -> Iterator[Engine]:
    folder = tmp_path / "kv"
    folder.mkdir(mode=0o700)
    tiers = (HostTier(pages=512), DiskTier(folder, "1MiB"), RemoteTier("memory:///"))
    with Engine(model, options=Options(model=model, page_size=4, tiers=tiers), num_blocks=256) as opened:
        yield opened


def test_the_block_is_aligned_and_adds_up(engine: Engine, tmp_path: Path) -> None:
    start = _start(engine)
    lines = str(start).splitlines()
    assert lines[0].startswith("kvpager ")
    assert {line[2:10].rstrip() for line in lines[1:]} == {
        "model", "kv", "tiers", "device", "host", "disk", "remote", "eviction", "limits", "keys", "api", "page",
        "metrics",
    }  # fmt: skip
    assert all((line[:2] == "  " and line[10] == " " and line[11] != " ") or "tiers" in line for line in lines[1:])
    device, host, disk, remote = start.tiers
    assert (device.pages, device.tokens, device.bytes) == (256, 1024, 256 * engine.layout.block_bytes)
    assert (device.requests, host.requests) == ({512: 2}, {512: 4})
    assert (host.pages, host.place) == (512, "memory")
    assert disk.place == str(tmp_path / "kv")
    assert disk.pages > 0
    assert (remote.pages, remote.place) == (0, "memory:///")
    assert "256 bytes a token" in str(start)
    assert "http://127.0.0.1:8000/v1" in str(start)


def test_the_block_as_json(engine: Engine) -> None:
    start = _start(engine)
    told = json.loads(json.dumps(start.as_json()))
    assert told["tiers"][0]["requests"] == {"512": 2}
    assert told["url"] == "http://127.0.0.1:8000"


def test_keys_are_never_shown(engine: Engine) -> None:
    assert "*** (asked for)" in str(_start(engine, keys=True))
    assert "none is asked for" in str(_start(engine))


def test_a_url_of_an_address_with_colons() -> None:
    assert server_run._url("::1", 80) == "http://[::1]:80"
    assert server_run._url("127.0.0.1", 80) == "http://127.0.0.1:80"


def test_the_status_line(model: str) -> None:
    async def body() -> None:
        async with running_thread(model, tiers=(HostTier(pages=64),)) as thread:
            before = await thread.call(lambda engine: take(engine, 0.0))
            idle = await thread.call(lambda engine: take(engine, 10.0))
            assert status_line(before, idle) is None
            prompt = "the moon changes its shape because"
            for _ in range(2):
                await (await thread.submit(ask(prompt, 6))).completions()
            await at_rest(thread)
            now = await thread.call(lambda engine: take(engine, 10.0))
            line = status_line(before, now)
            assert line is not None
            assert "1 generated tokens/s" in line
            assert "0 running, 0 waiting" in line
            assert "hits" in line
            assert "device" in line
            assert "faults" in line
            assert "demand" in line
            assert "down to host" in line
            assert prompt not in line
            assert status_line(now, await thread.call(lambda engine: take(engine, 20.0))) is None

    asyncio.run(body())
