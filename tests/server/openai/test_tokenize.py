"""/v1/models, /tokenize and /detokenize."""

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.tiny_model import TEMPLATE, save_tiny_model
from tests.server.serving import Serving, serving

TALK: list[dict[str, Any]] = [{"role": "user", "content": "the moon"}]


def test_the_model_there_is(client: httpx.Client, server: Serving) -> None:
    name = server.service.model_name
    assert "/" not in name  # not where it lies
    (only,) = client.get("/v1/models").json()["data"]
    assert (only["id"], only["object"], only["max_model_len"]) == (name, "model", server.engine.max_request_tokens)
    assert client.get(f"/v1/models/{name}").json() == only
    assert client.get("/v1/models/another").json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("text", ["the moon", "", "  \u20ac\U0001f31b\n", "the moon " * 1000])
def test_a_text_comes_back_from_its_tokens(client: httpx.Client, server: Serving, text: str) -> None:
    found = client.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert found["tokens"] == server.engine.tokenizer.encode(text)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == 512
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text}


def test_a_conversation_is_tokenized_as_a_chat_would(client: httpx.Client) -> None:
    tokens = client.post("/tokenize", json={"messages": TALK}).json()["tokens"]
    chat = {"messages": TALK, "max_tokens": 4, "temperature": 0}
    said = client.post("/v1/chat/completions", json=chat).json()
    assert said["usage"]["prompt_tokens"] == len(tokens)
    raw = client.post("/v1/completions", json={"prompt": tokens, "max_tokens": 4, "temperature": 0}).json()
    assert raw["choices"][0]["text"] == said["choices"][0]["message"]["content"]
    shorter = client.post("/tokenize", json={"messages": TALK, "add_generation_prompt": False}).json()["tokens"]
    assert tokens[: len(shorter)] == shorter != tokens


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": TALK}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": TALK, "chat_template": "{{ 1 }}"}, "chat_template"),
        ("/detokenize", {"tokens": [320]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_what_is_no_text_and_no_token_is_refused(
    client: httpx.Client, route: str, body: dict[str, Any], param: str
) -> None:
    response = client.post(route, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_a_text_far_beyond_the_context_is_refused_before_all_of_it_is_tokenized(
    client: httpx.Client, server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, seen = server.engine.tokenizer, 0
    encode = tokenizer.encode

    def counting(text: str, **options: Any) -> Any:
        nonlocal seen
        seen += len(text)
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode", counting)
    text = "0123456789" * 100_000
    for route, body in (
        ("completions", {"prompt": text}),
        ("chat/completions", {"messages": [{**TALK[0], "content": text}]}),
    ):
        error = client.post(f"/v1/{route}", json=body).json()["error"]
        assert error["code"] == "context_length_exceeded"
    assert seen < len(text) / 2
    assert client.post("/tokenize", json={"prompt": text}).status_code == 400
    fits = client.post("/tokenize", json={"prompt": text[:200_000]}).json()
    assert fits["tokens"] == encode(text[:200_000])


# -- templates --------------------------------------------------------------------------------------------------------


def test_a_model_without_a_template_does_not_chat(tmp_path: Path) -> None:
    with serving(str(save_tiny_model(tmp_path / "plain", template=None))) as server:
        response = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": TALK}, timeout=60)
        assert response.status_code == 400
        assert "/v1/completions" in response.json()["error"]["message"]


_ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
_RAISES = "{{ raise_exception('roles must alternate') }}"
_SLIPS = "{{ messages[0].content.no.such.thing }}"
_BREAKS_OUT = "{{ messages.__class__.__mro__[1].__subclasses__() }}"


@pytest.mark.parametrize(
    ("what", "said"),
    [(_ENDLESS, "took longer"), (_RAISES, "roles must alternate"), (_SLIPS, "refuses"), (_BREAKS_OUT, "refuses")],
    ids=["endless", "raises", "slips", "breaks out"],
)
def test_a_template_that_goes_wrong_harms_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, said: str
) -> None:
    limit = 0.3 if what == _ENDLESS else 60.0  # for the others a machine may take its time
    monkeypatch.setattr("kvpager.server.openai.templates.MAX_SECONDS", limit)
    template = f"{{% if messages[0].content == 'go' %}}{what}{{% endif %}}{TEMPLATE}"
    with (
        serving(str(save_tiny_model(tmp_path / "odd", template=template))) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        response = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "go"}]})
        assert response.status_code == 400
        assert said in response.json()["error"]["message"]
        assert "__subclasses__" not in response.text
        monkeypatch.setattr("kvpager.server.openai.templates.MAX_SECONDS", 60.0)
        assert client.post("/v1/chat/completions", json={"messages": TALK, "max_tokens": 1}).status_code == 200
        assert_idle_threads()


def assert_idle_threads() -> None:
    """What was stopped has really ended: no thread of ours computes on."""
    begin = time.process_time()
    wait = threading.Event()
    wait.wait(0.3)
    assert time.process_time() - begin < 0.2
