"""Open case O-26: every route asks for the key, however its path is written, before it reads a body."""

import asyncio
import socket
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns

import httpx
import pytest
from fastapi import FastAPI

from kvpager.config.server_options import ServerOptions
from kvpager.errors import ConfigError
from kvpager.server.app import create_app
from kvpager.server.guard import LIVENESS
from kvpager.server.keys import ApiKeys, check_bind, load_keys
from kvpager.server.run import serve
from kvpager.server.tenant import named_tenant
from tests.cli.tiny_model import save_tiny_model
from tests.server.asgi import LOCAL, Answer, ask, asked
from tests.server.every_route import every_path
from tests.server.serving import Serving, serving

KEY = "0123456789abcdef0123456789abcdef"
MARKER = "marker-4f1d"  # of the model's folder
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS")
WRONG_KEYS = {
    "none": None,
    "wrong": b"Bearer " + KEY[::-1].encode(),
    "empty": b"Bearer ",
    "nothing": b"",
    "space behind": f"Bearer {KEY} ".encode(),
    "not ASCII": "Bearer ключ".encode(),
    "cut": f"Bearer {KEY[:-1]}".encode(),
}
SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda path: path,
    "//": lambda path: f"/{path}",
    "inner //": lambda path: path.replace("/", "//"),
    "upper case": lambda path: path.upper(),
    "trailing slash": lambda path: f"{path}/",
    "/./": lambda path: f"/.{path}",
    "..": lambda path: f"/health/..{path}",  # %2e%2e, as the web server hands it on
    "; and a query": lambda path: f"{path};/health?/health",
    "absolute": lambda path: f"http://127.0.0.1/health{path}",
}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"team-a {KEY}\nops {KEY[::-1]}x operator\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def app(keys: Path) -> FastAPI:
    """Without an engine: whatever gets past the guard fails."""
    return create_app(_no_engine, ServerOptions(api_keys=keys))


def _no_engine() -> "object":
    raise AssertionError("the engine was opened")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp(MARKER)
    path = folder / "keys"
    path.write_text(f"team-a {KEY}\nops {KEY[::-1]}x operator\n")
    path.chmod(0o600)
    with serving(str(save_tiny_model(folder / "tiny")), server=ServerOptions(port=0, api_keys=path)) as opened:
        yield opened


def test_no_spelling_of_any_path_leads_around_the_guard(app: FastAPI) -> None:
    paths = every_path(app)
    assert {"/v1/completions", "/v1/chat/completions", "/metrics", "/v1/kv/info", "/openapi.json", *LIVENESS} <= {
        *paths
    }

    async def try_all() -> int:
        tried = 0
        for path in paths:
            for spelling, spell in SPELLINGS.items():
                for method in METHODS:
                    if spell(path) in LIVENESS and method in ("GET", "HEAD"):
                        continue
                    for name, key in WRONG_KEYS.items():
                        headers = [LOCAL, *([] if key is None else [(b"authorization", key)])]
                        answer = await asked(app, method, spell(path), headers, body=[b"{}"])
                        assert (answer.status, answer.reads) == (401, 0), (path, spelling, method, name)
                        tried += 1
        return tried

    assert asyncio.run(try_all()) > 5000


def test_a_known_key_opens_what_is_its_own(server: Serving) -> None:
    """The other side of it: nothing is closed to everybody."""
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        assert client.get("/v1/models").status_code == 200
        assert client.get("/openapi.json").status_code == 200
        assert client.get("/v1/kv/info").status_code == 200
        assert client.get("/metrics").status_code == 403  # for operators
        assert client.get("/metrics", headers={"Authorization": f"Bearer {KEY[::-1]}x"}).status_code == 200
        for path in (
            "/v1/models/",
            "//v1/models",
            "/V1/models",
            "/v1/%2e/models",
            "/docs",
            "/redoc",
            "/debug",
            "/slots",
        ):
            assert client.get(path).status_code == 404, path


def test_over_the_wire_too(server: Serving) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for path in ("/v1/models", "//v1/models", "/health/%2e%2e/v1/models", "/%2e/v1/models", "/v1/models#/health"):
            assert client.get(path).status_code == 401, path
        refused = client.post("/v1/completions", content=b"x" * 1000)
        assert (refused.status_code, refused.headers["connection"]) == (401, "close")


def test_liveness_says_nothing_of_the_model(server: Serving) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for path in sorted(LIVENESS):
            answer = client.get(path)
            assert answer.status_code == 200
            for secret in (MARKER, "tiny", KEY, "team-a"):
                assert secret not in answer.text


def test_what_others_may_not_see_is_off_by_default(app: FastAPI) -> None:
    """Block map, tables, metrics, resets: for operators, or not at all."""
    headers = [LOCAL, (b"authorization", f"Bearer {KEY}".encode()), (b"content-type", b"application/json")]

    def reached(path: str) -> Answer:
        method, body = ("POST", b'{"tiers": ["device"]}') if path == "/v1/kv/reset" else ("GET", b"")
        return ask(app, method, path, headers, body=[body])

    own = {"/v1/kv/info", "/v1/kv/retain", "/v1/kv/quota", "/v1/kv/sessions", "/v1/kv/sessions/restore"}
    shown = [path for path in every_path(app) if path.startswith("/v1/kv/") and path not in own]
    assert "/v1/kv/reset" in shown
    for path in [*shown, "/metrics"]:
        assert reached(path).status == 403, path


def test_an_open_bind_needs_a_key_or_a_flag(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ServerOptions().host == "127.0.0.1"
    monkeypatch.delenv("KVPAGER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="API key"), socket.socket() as unused:
        serve(_no_engine, ServerOptions(host="0.0.0.0"), unused, print)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="API key"):
        check_bind(ServerOptions(host="0.0.0.0"), has_keys=False)
    check_bind(ServerOptions(host="0.0.0.0"), has_keys=len(load_keys(keys, {})) > 0)
    check_bind(ServerOptions(host="0.0.0.0", allow_open_bind=True), has_keys=False)


@pytest.mark.heavy
def test_time_says_nothing_of_how_much_of_a_key_is_right() -> None:
    known = ApiKeys({KEY: named_tenant("team-a", is_operator=False)})
    guesses = [b"x" + KEY[1:].encode(), KEY[:31].encode() + b"x"]  # share 0 and 31 leading characters
    best = 1.0
    for _ in range(5):  # a busy machine disturbs some of them
        taken: list[list[int]] = [[], []]
        for turn in range(20_000):
            which = (turn ^ turn >> 1) & 1  # neither is always the first of a pair
            begin = perf_counter_ns()
            assert known.tenant(guesses[which]) is None
            taken[which].append(perf_counter_ns() - begin)
        first, second = map(statistics.median, taken)
        best = min(best, abs(first - second) / first)
    assert best < 0.01
