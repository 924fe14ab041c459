"""/v1/kv/sessions: kept over a restart, a tenant's own, and never a path."""

from pathlib import Path

import httpx
import pytest

from kvpager.config.server_options import ServerOptions
from kvpager.config.tiers import DiskTier
from kvpager.server.kv import session_book
from tests.server.kv.conftest import KEYS, As
from tests.server.serving import Serving, serving

MESSAGES = [{"role": "user", "content": "the moon changes its shape because the sun lights it"}]


def test_a_session_outlives_the_server(model: str, keys: Path, tmp_path: Path) -> None:
    tiers = (DiskTier(tmp_path / "disk", "16MiB"),)
    options = ServerOptions(port=0, api_keys=keys)
    chat = {"messages": MESSAGES, "max_tokens": 1, "cache_salt": "s"}

    def client_of(server: Serving) -> httpx.Client:
        return httpx.Client(base_url=server.url, timeout=60, headers={"Authorization": f"Bearer {KEYS['team-a']}"})

    with serving(model, server=options, tiers=tiers) as server, client_of(server) as client:
        client.post("/v1/chat/completions", json=chat)
        saved = client.post("/v1/kv/sessions", json={"name": "evening", "messages": MESSAGES, "cache_salt": "s"})
        assert saved.status_code == 200, saved.text
    with serving(model, server=options, tiers=tiers) as server, client_of(server) as client:
        (listed,) = client.get("/v1/kv/sessions").json()["data"]
        assert listed == saved.json()
        found = client.post("/v1/kv/sessions/restore", json={"name": "evening"}).json()
        assert (found["messages"], len(found["tokens"])) == (MESSAGES, listed["tokens"])
        assert found["is_loading"] or found["on_device"]
        usage = client.post("/v1/chat/completions", json=chat).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0
        assert client.delete("/v1/kv/sessions", params={"name": "evening"}).json()["deleted"]
        assert client.get("/v1/kv/sessions").json()["data"] == []
        assert client.post("/v1/kv/sessions/restore", json={"name": "evening"}).status_code == 404
    (left,) = (tmp_path / "disk").rglob("session-*")  # the empty list
    assert b"evening" not in left.read_bytes()


def test_a_name_is_the_tenants_own(shared: Serving, speak_for: As) -> None:
    a, b = speak_for("team-a"), speak_for("team-b")
    a.post("/v1/kv/sessions", json={"name": "x", "prompt": [1, 2, 3]})
    assert b.post("/v1/kv/sessions/restore", json={"name": "x"}).status_code == 404
    assert b.delete("/v1/kv/sessions", params={"name": "x"}).status_code == 404
    b.post("/v1/kv/sessions", json={"name": "x", "prompt": [4, 5]})
    assert a.post("/v1/kv/sessions/restore", json={"name": "x"}).json()["tokens"] == [1, 2, 3]
    assert [each["tokens"] for each in b.get("/v1/kv/sessions").json()["data"]] == [2]


@pytest.mark.parametrize("name", ["", "../../x", "/etc/x", "a\0b", "a/b", ".hidden", "x" * 300, "ä", "a b", "x\n"])
def test_a_name_is_never_a_path(shared: Serving, speak_for: As, name: str) -> None:
    client = speak_for("team-a")
    answers = [
        client.post("/v1/kv/sessions", json={"name": name, "prompt": [1]}),
        client.post("/v1/kv/sessions/restore", json={"name": name}),
        client.delete("/v1/kv/sessions", params={"name": name}),
    ]
    assert [answer.status_code for answer in answers] == [400, 400, 400]
    assert [answer.json()["error"]["param"] for answer in answers] == ["name", "name", "name"]


def test_sessions_are_bounded(shared: Serving, speak_for: As, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_book, "MOST_EACH", 2)
    client = speak_for("ops")
    statuses = [
        client.post("/v1/kv/sessions", json={"name": name, "prompt": [1]}).status_code for name in ("a", "b", "c", "a")
    ]
    assert statuses == [200, 200, 409, 200]
    assert client.post("/v1/kv/sessions", json={"name": "a", "prompt": [1] * 600}).status_code == 400


def test_a_damaged_session_is_said_to_be(shared: Serving, speak_for: As) -> None:
    client = speak_for("team-a")
    client.post("/v1/kv/sessions", json={"name": "torn", "prompt": [1, 2]})
    disk = shared.engine.options.tiers[1]
    assert isinstance(disk, DiskTier)
    for path in Path(disk.folder).rglob("session-*"):
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    answer = client.post("/v1/kv/sessions/restore", json={"name": "torn"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "session_damaged")
    assert client.get("/v1/kv/sessions").json()["data"] == []  # its list was damaged too, and begins anew
    assert client.post("/v1/kv/sessions", json={"name": "torn", "prompt": [1, 2]}).status_code == 200


def test_without_a_disk_there_are_none(client: httpx.Client) -> None:
    answer = client.get("/v1/kv/sessions")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_disk_tier")
