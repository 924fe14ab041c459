"""Open case O-28: clients' names, large headers, and logs that tell nothing of what was said."""

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from kvpager.config.server_options import ServerOptions
from kvpager.config.tiers import DiskTier
from kvpager.engine.engine import Engine
from kvpager.server.log_filter import HideContent
from tests.cli.tiny_model import save_tiny_model
from tests.server.processes import wait_until
from tests.server.serving import Serving, serving

KEY = "sk-marker-key-77aa88bb99cc"
FILE_KEY = "sk-marker-key-55dd66ee77ff"
PROMPT_MARKER, SALT_MARKER, NAME_MARKER = "zq7prompt", "zq7salt", "zq7name"
MARKERS = (PROMPT_MARKER, SALT_MARKER, NAME_MARKER, KEY, FILE_KEY)
BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("case")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> str:
    return str(save_tiny_model(folder / "tiny"))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Everything from INFO on, as a server's handlers write it."""
    for handler in (caplog.handler, *logging.getLogger().handlers):
        handler.addFilter(HideContent())
    logging.getLogger("httpx").setLevel(logging.WARNING)  # the client's own
    with caplog.at_level(logging.INFO):
        yield caplog


@pytest.fixture
def server(tiny: str, tmp_path: Path) -> Iterator[Serving]:
    keys = tmp_path / "keys"
    keys.write_text(f"ops {KEY} operator\n")
    keys.chmod(0o600)
    options = ServerOptions(port=0, api_keys=keys)
    with serving(tiny, server=options, tiers=(DiskTier(tmp_path / "disk", "16MiB"),)) as opened:
        yield opened


@pytest.fixture
def client(server: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=BEARER, timeout=60) as opened:
        yield opened


def test_two_requests_of_one_id_are_two_requests(client: httpx.Client) -> None:
    prompts = ["the moon changes its shape", "a page table maps each page", "the cook writes down", "until noon"]

    def ask(prompt: str, headers: dict[str, str]) -> str:
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0}
        answer = client.post("/v1/completions", json=body, headers=headers)
        assert answer.headers.get("x-request-id") == headers.get("X-Request-Id", answer.headers["x-request-id"])
        text: str = answer.json()["choices"][0]["text"]
        return text

    alone = [ask(prompt, {}) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: ask(prompt, {"X-Request-Id": "one", "X-Session-Id": "one"}), prompts))
    assert together == alone


def test_headers_without_end_are_refused(server: Serving) -> None:
    address = urlsplit(server.url)
    many = b"".join(b"X-%d: y\r\n" % number for number in range(1000))
    for headers in (b"X-Large: " + b"a" * (1 << 20) + b"\r\n", many, b"X-Request-Id: " + b"i" * 40_000 + b"\r\n"):
        with socket.create_connection((address.hostname, address.port), timeout=60) as raw:
            with suppress(BrokenPipeError, ConnectionResetError):  # it does not listen to the end
                raw.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")
            try:
                status = raw.recv(64).split(b" ")[1]
            except ConnectionResetError:
                continue
        assert status in (b"400", b"431")


def test_an_id_forges_no_line_of_the_log(server: Serving, log: pytest.LogCaptureFixture) -> None:
    address = urlsplit(server.url)
    evil = b"one\r\n two\x1b[31m ERROR forged"  # folded, so that it is one header
    with socket.create_connection((address.hostname, address.port), timeout=60) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + evil + b"\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: raw.recv(4096), b""))
    assert b"\x1b" not in answer
    assert not [
        line for line in log.text.splitlines() if line.startswith("two") or ("forged" in line and "\x1b" in line)
    ]


def say_all(client: httpx.Client) -> list[str]:
    """Requests that carry markers wherever a client may put something; the errors among what comes back."""
    body = {"prompt": f"say {PROMPT_MARKER}", "max_tokens": 4, "cache_salt": SALT_MARKER, "stop": [PROMPT_MARKER]}
    message = {"role": "user", "content": PROMPT_MARKER}
    assert client.post("/v1/completions", json=body).status_code == 200
    assert client.post("/v1/chat/completions", json={"messages": [message], "max_tokens": 2}).status_code == 200
    kept = {"name": NAME_MARKER, "messages": [message], "cache_salt": SALT_MARKER}
    assert client.post("/v1/kv/sessions", json=kept).status_code == 200
    wrong = [
        {**body, "max_tokens": PROMPT_MARKER},
        {**body, "stop": [f"{PROMPT_MARKER}{'x' * 300}"]},
        {**body, PROMPT_MARKER: 1},
        {**body, "logit_bias": {PROMPT_MARKER: 1}},
        {**body, "cache_salt": [SALT_MARKER]},
        {**body, "model": NAME_MARKER},
    ]
    answers = [client.post("/v1/completions", json=each) for each in wrong]
    answers.append(client.get(f"/v1/models?{NAME_MARKER}={SALT_MARKER}"))
    answers.append(client.get(f"/v1/{NAME_MARKER}"))
    answers.append(client.get("/v1/models", headers={"Authorization": f"Bearer {KEY}x"}))
    assert {answer.status_code for answer in answers} == {200, 400, 401, 404}
    return [answer.text for answer in answers if answer.status_code != 400]


def test_no_marker_in_logs_metrics_errors_or_names(
    client: httpx.Client, server: Serving, log: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    told = say_all(client)

    def break_down(*_: object, **__: object) -> None:
        raise RuntimeError(f"can't read {PROMPT_MARKER}") from KeyError(SALT_MARKER)

    for owner, name in ((type(server.engine.tokenizer), "encode"), (type(server.engine.runner), "forward")):
        log.clear()
        with monkeypatch.context() as broken:
            broken.setattr(owner, name, break_down)
            inner = client.post("/v1/completions", json={"prompt": PROMPT_MARKER})
        assert inner.status_code == 500
        assert "RuntimeError at" in log.text  # the log says where, and it was listened to
        told += [inner.text, log.text]
    assert client.post("/v1/completions", json={"prompt": PROMPT_MARKER}).status_code == 200
    told.append(client.get("/metrics").text)
    assert "kvpager_" in told[-1]
    told.append(client.get("/v1/kv/info").text)
    told.append(client.get("/v1/kv/frame").text)
    names = [str(path) for path in (tmp_path / "disk").rglob("*")]
    assert names
    said = capfd.readouterr()
    told += [log.text, said.out, said.err, "\n".join(names), repr(server.service.options)]
    for text in told:
        assert not [marker for marker in MARKERS if marker in text], text[:2000]


def test_a_dying_engine_tells_nothing_either(
    client: httpx.Client, server: Serving, log: pytest.LogCaptureFixture
) -> None:
    def die(engine: Engine) -> None:
        raise RuntimeError(f"can't go on with {PROMPT_MARKER}")

    server.service.thread.before_turn = die
    health = wait_until(server.url, 503, "/health")
    answer = client.post("/v1/completions", json={"prompt": PROMPT_MARKER})
    assert (health.status_code, answer.status_code) == (503, 503)
    assert "RuntimeError" in log.text
    for text in (log.text, health.text, answer.text):
        assert PROMPT_MARKER not in text


@pytest.mark.slow
def test_a_key_is_in_no_start_line_and_no_process_list(tiny: str, tmp_path: Path) -> None:
    """One key is given by the environment, one by a file; both are used."""
    keys = tmp_path / "keys"
    keys.write_text(f"ops {FILE_KEY} operator\n")
    keys.chmod(0o600)
    command = [sys.executable, "-m", "kvpager.cli.main", "serve", tiny, "--port", "0", "--capacity", "4MiB"]
    command += ["--api-keys", str(keys)]
    environ = {**os.environ, "KVPAGER_API_KEY": KEY}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as running:
        try:
            assert running.stdout is not None
            lines = list(takewhile(lambda line: "http://" not in line, running.stdout))
            lines.append(running.stdout.readline())  # another address
            url = urlsplit(lines[-1].split()[-1])
            started = Path(f"/proc/{running.pid}/cmdline").read_bytes().decode()
            told = []
            for key in (KEY, FILE_KEY):
                bearer = {"Authorization": f"Bearer {key}"}
                with httpx.Client(base_url=f"http://{url.netloc}", headers=bearer, timeout=60) as one:
                    told += [*say_some(one), one.get("/metrics").text]
            running.send_signal(signal.SIGTERM)
            out, err = running.communicate(timeout=200)
        finally:
            running.kill()
    assert running.returncode == 0
    for text in (*lines, started, out, err, *told):
        assert not [marker for marker in MARKERS if marker in text], text


def say_some(client: httpx.Client) -> list[str]:
    body = {"prompt": f"say {PROMPT_MARKER}", "max_tokens": 2, "cache_salt": SALT_MARKER}
    assert client.post("/v1/completions", json=body).status_code == 200
    return [client.post("/v1/completions", json=body | {"max_tokens": "x"}).text, client.get("/health").text]
