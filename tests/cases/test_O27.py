"""Open case O-27: what a client sends chooses no code, no host and no file.

The process is watched while it answers: which files it opens, whom it connects to, what it starts.
"""

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvpager.config.tiers import DiskTier
from kvpager.server.openai import templates
from tests.cli.tiny_model import TEMPLATE, save_tiny_model
from tests.server.serving import Serving, serving

CHAT, TEXT, SESSIONS = "/v1/chat/completions", "/v1/completions", "/v1/kv/sessions"
CPU_SECONDS = 0.5  # of an answer, the client's part included; it takes a few thousandths
EVIL = "{{ ''.__class__.__mro__ }}{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"


class Watch:
    """What the whole process did while it was on. An audit hook can't be taken out again, so there is one."""

    def __init__(self) -> None:
        self.is_on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and event in (
            "open",
            "socket.connect",
            "socket.getaddrinfo",
            "subprocess.Popen",
            "exec",
            "import",
        ):
            self.seen.append(f"{event} {arguments[0] if event != 'socket.connect' else arguments[1]}")

    @contextmanager
    def watching(self) -> Iterator[list[str]]:
        self.seen.clear()
        self.is_on = True
        try:
            yield self.seen
        finally:
            self.is_on = False


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("server")
    with serving(str(save_tiny_model(folder / "tiny")), tiers=(DiskTier(folder / "disk", "16MiB"),)) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[httpx.Client]:
    """Connected, and with everything loaded that an answer or an error needs."""
    with httpx.Client(base_url=server.url, timeout=60) as opened:
        for _ in range(2):
            opened.post(CHAT, json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
            opened.post(TEXT, json={"prompt": "hi", "max_tokens": 1})
            for route in (CHAT, TEXT, SESSIONS, f"{SESSIONS}/restore"):
                assert opened.post(route, json={"nonsense": 1}).status_code == 400
            opened.post(SESSIONS, json={"name": "usual", "prompt": [1]})
        yield opened


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Where nobody may come by."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        opened.setblocking(False)
        yield opened


def bodies(port: int) -> list[tuple[str, dict[str, Any]]]:
    url = f"http://127.0.0.1:{port}/x"

    def chat(**more: object) -> tuple[str, dict[str, Any]]:
        return CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **more}

    def image(address: str) -> tuple[str, dict[str, Any]]:
        part = {"type": "image_url", "image_url": {"url": address}}
        return chat(messages=[{"role": "user", "content": [{"type": "text", "text": "what?"}, part]}])

    peer = {"remote_host": "127.0.0.1", "remote_port": port, "tp_size": 10**9, "do_remote_prefill": True}
    names = ["../../x", "/etc/hostname", "a\0b", "x" * 300, "..", "."]
    return [
        chat(chat_template=EVIL),
        chat(chat_template_kwargs={"chat_template": EVIL}),
        chat(chat_template_kwargs={"tokenize": True, "tools": EVIL}),
        chat(chat_template_args={"x": EVIL}),
        image(url),
        image("file:///etc/hostname"),
        image("data:text/plain;base64,aGk="),
        chat(kv_transfer_params=peer),
        (TEXT, {"prompt": "hi", "kv_transfer_params": peer}),
        (TEXT, {"prompt": "hi", "lora_path": "/etc"}),
        (TEXT, {"prompt": "hi", "cache_file": "/etc/hostname"}),
        (TEXT, {"prompt": "hi", "model": "/etc/hostname"}),
        (TEXT, {"prompt": "hi", "model": url}),
        chat(mm_processor_kwargs={"path": "/etc"}),
        *((SESSIONS, {"name": name, "prompt": [1]}) for name in names),
        *((f"{SESSIONS}/restore", {"name": name}) for name in names),
    ]


def test_nothing_is_fetched_opened_or_run(client: httpx.Client, watch: Watch, listener: socket.socket) -> None:
    for route, body in bodies(listener.getsockname()[1]):
        begin = time.process_time()
        with watch.watching() as seen:
            answer = client.post(route, json=body)
        assert answer.status_code in (400, 404), (body, answer.text)
        assert answer.json()["error"]["message"]
        assert "mro" not in answer.text
        assert time.process_time() - begin < CPU_SECONDS, body
        assert not seen, body
    with pytest.raises(BlockingIOError):  # nobody came
        listener.accept()


def test_the_watch_sees_what_there_is_to_see(client: httpx.Client, watch: Watch, listener: socket.socket) -> None:
    """The other side of it: a session of a legal name is a file, by a name that is ours."""
    with watch.watching() as seen:
        assert client.post(SESSIONS, json={"name": "evening", "prompt": [1]}).status_code == 200
    opened = [line for line in seen if line.startswith("open ")]
    assert any("session-" in line for line in opened)
    assert not [line for line in opened if "evening" in line]
    with watch.watching() as seen, socket.create_connection(listener.getsockname()):
        pass
    assert any(line.startswith("socket.connect") for line in seen)
    listener.accept()[0].close()


def test_a_variable_of_the_models_own_template_is_only_text(client: httpx.Client) -> None:
    body = {
        "messages": [{"role": "user", "content": EVIL}],
        "max_tokens": 1,
        "chat_template_kwargs": {"__class__": EVIL},
    }
    begin = time.process_time()
    assert client.post(CHAT, json=body).status_code == 200
    assert time.process_time() - begin < CPU_SECONDS


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x{% endfor %}{% endfor %}"
        "{% endfor %}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ 'x' * 10 ** 12 }}",
    ],
    ids=["endless", "escaping", "huge"],
)
def test_a_bad_template_of_the_model_ends_in_time(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "MAX_SECONDS", 0.3)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    path = str(save_tiny_model(tmp_path / "tiny", template=template))
    with serving(path) as own, httpx.Client(base_url=own.url, timeout=60) as one:
        answer = one.post(CHAT, json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "messages"
        assert one.get("/ready").status_code == 200
    assert TEMPLATE not in answer.text
