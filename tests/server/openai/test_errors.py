"""What goes wrong, as OpenAI's own client raises it; and that no error says what was sent."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from kvpager.config.server_options import ServerOptions
from kvpager.engine.engine import Engine
from tests.server.openai.settled import assert_settled
from tests.server.serving import Serving, serving

MARKER = "xyzzy-marker"


def test_an_unknown_model_names_the_one_there_is(api: openai.OpenAI, name: str) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        api.completions.create(model="gpt-unheard-of", prompt="hi")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert name in caught.value.message
    assert "gpt-unheard-of" not in caught.value.message


@pytest.mark.parametrize("field", ["prompt", "max_tokens"])
def test_what_is_too_long_is_told_the_limit(api: openai.OpenAI, name: str, field: str) -> None:
    asked: dict[str, Any] = {"prompt": [5] * 600} if field == "prompt" else {"prompt": [5] * 500, "max_tokens": 13}
    with pytest.raises(openai.BadRequestError, match="512") as caught:
        api.completions.create(model=name, **asked)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", field)


def test_a_conversation_too_long_is_told_the_limit(api: openai.OpenAI, name: str) -> None:
    with pytest.raises(openai.BadRequestError, match="512") as caught:
        api.chat.completions.create(model=name, messages=[{"role": "user", "content": "moon " * 600}])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_unknown_routes_and_methods_have_the_same_shape(client: httpx.Client) -> None:
    for response, status in ((client.post("/v1/nothing", json={}), 404), (client.get("/v1/completions"), 405)):
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


_CONTENT = {"role": "user", "content": MARKER}


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/completions", {"prompt": MARKER, "temperature": MARKER}),
        ("/v1/completions", {"prompt": [MARKER, 1]}),
        ("/v1/completions", {"prompt": {MARKER: MARKER}}),
        ("/v1/completions", {"prompt": MARKER, "stop": [MARKER * 30]}),
        ("/v1/completions", {"prompt": MARKER * 3000}),
        ("/v1/completions", {"prompt": MARKER, "logit_bias": {MARKER: 1}}),
        ("/v1/completions", {"prompt": MARKER, "cache_salt": MARKER * 30}),
        ("/v1/completions", {"prompt": MARKER, "model": MARKER}),
        ("/v1/chat/completions", {"messages": [_CONTENT | {"role": MARKER}]}),
        ("/v1/chat/completions", {"messages": [_CONTENT, {"role": "user", "content": [{"type": MARKER}]}]}),
        ("/v1/chat/completions", {"messages": [_CONTENT], "response_format": {"type": MARKER}}),
        ("/v1/chat/completions", {"messages": [_CONTENT], "tool_choice": MARKER}),
        ("/tokenize", {"prompt": MARKER, "model": MARKER}),
        ("/detokenize", {"tokens": [MARKER]}),
    ],
)
def test_no_error_says_what_was_sent(client: httpx.Client, route: str, body: dict[str, Any]) -> None:
    response = client.post(route, json=body)
    assert response.status_code in (400, 404)
    assert MARKER not in response.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chat_template", "{{ 1 }}"),
        ("chat_template_kwargs", {"chat_template": "{{ 1 }}"}),
        ("chat_template_kwargs", {"tokenize": True}),
        ("chat_template_kwargs", {"tokenizer_kwargs": "x"}),
        ("chat_template_kwargs", {"nested": {"a": 1}}),
        ("chat_template_args", {"x": 1}),
        ("kv_transfer_params", {"remote_host": "127.0.0.1", "remote_port": 1, "tp_size": 10**9}),
        ("documents", []),
        ("functions", []),
    ],
)
def test_a_client_chooses_no_template_and_no_host(client: httpx.Client, field: str, value: object) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    error = client.post("/v1/chat/completions", json=body | {field: value}).json()["error"]
    assert error["param"].split(".")[0] == field


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "file:///etc/hostname", "data:image/png;base64,AAAA"])
def test_no_image_is_fetched(client: httpx.Client, url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    response = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": [part]}]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content"


@pytest.mark.parametrize(
    ("field", "remedy"), [("temprature", "did you mean 'temperature'?"), ("colour_of_the_moon", "remove it")]
)
def test_an_unknown_field_is_refused_with_a_remedy(client: httpx.Client, field: str, remedy: str) -> None:
    error = client.post("/v1/completions", json={"prompt": "hi", field: 1}).json()["error"]
    assert error["message"] == f"{field}: unknown field; {remedy}"
    assert error["param"] == field


def test_variables_of_the_template_are_let_through(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"enable_thinking": False}}
    assert client.post("/v1/chat/completions", json=body | {"max_tokens": 1}).status_code == 200


# -- errors of the engine ---------------------------------------------------------------------------------------------


@pytest.fixture
def narrow(model: str) -> Iterator[Serving]:
    """Two requests may wait, one may run."""
    with serving(model, max_waiting=2, max_running=1) as opened:
        yield opened


def test_a_full_queue_is_429_with_a_time_to_wait(narrow: Serving) -> None:
    with httpx.Client(base_url=narrow.url, timeout=60) as client:
        response = client.post("/v1/completions", json={"prompt": ["a"] * 10, "max_tokens": 100})
        assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_full")
        assert int(response.headers["Retry-After"]) >= 1
        assert_settled(narrow)
        assert client.post("/v1/completions", json={"prompt": ["a"] * 2, "max_tokens": 1}).status_code == 200
        assert client.post("/v1/completions", json={"prompt": "a", "n": 2}).json()["error"]["param"] == "n"


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_may_not_take_for_ever(model: str, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """Without a token by then there is no answer."""
    with serving(model, server=ServerOptions(port=0, max_seconds=600)) as server:
        thread, loop = server.service.thread, server.service.thread._loop
        assert loop is not None

        def expire(engine: Engine) -> None:
            """Its time is over as soon as the engine has it."""
            for answer in tuple(thread._answers):
                if answer.limit is not None and not answer.is_expired:
                    loop.call_soon_threadsafe(thread._expire, answer)

        with httpx.Client(base_url=server.url, timeout=60) as client, monkeypatch.context() as patched:
            patched.setattr(server.engine, "step", lambda: time.sleep(0.01))
            thread.before_turn = expire
            response = client.post("/v1/completions", json={"prompt": "hi", "stream": stream})
            thread.before_turn = None
        if stream:
            assert '"code":"timeout"' in response.text
            assert "[DONE]" not in response.text
        else:
            assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
        assert_settled(server)


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_of_the_model_says_nothing_of_the_text(model: str, stream: bool) -> None:
    with serving(model) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        body = {"prompt": MARKER, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "stream": stream}
        assert client.post("/v1/completions", json=body).status_code == 200
        spoil(server.engine, after=3)
        response = client.post("/v1/completions", json=body)
        assert MARKER not in response.text
        if stream:
            *chunks, last = [line for line in response.text.split("\n\n") if line.startswith("data: ")]
            assert chunks  # of the tokens before it, however they came: tests/server/openai/test_failures.py
            assert '"error"' in last
            assert "[DONE]" not in response.text
        else:
            assert response.status_code == 500
            assert response.json()["error"]["type"] == "server_error"
        assert client.post("/v1/completions", json=body).status_code == 200


def spoil(engine: Engine, *, after: int) -> None:
    """The model raises once, after so many steps."""
    forward = engine.runner.forward
    left = after

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise RuntimeError(f"out of luck, with {MARKER}")
        return forward(*args, **kwargs)

    engine.runner.forward = failing  # type: ignore[method-assign]
