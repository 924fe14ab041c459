"""Answers that must have a form, and calls of tools that must be made: whatever a random model would rather say."""

import json
import re
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from kvpager.engine.endings import EndedBy
from kvpager.engine.request import Completion, FinishReason
from kvpager.eviction.policy import StopReason
from tests.server.serving import Serving

ASKED: list[Any] = [{"role": "user", "content": "the moon"}]
SCHEMA = {
    "type": "object",
    "properties": {"is_full": {"type": "boolean"}, "nights": {"enum": [1, 2, 3]}},
    "required": ["is_full", "nights"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_follows_its_schema(api: openai.OpenAI, name: str, stream: bool) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "moon", "schema": SCHEMA, "strict": True}}
    asked: dict[str, Any] = {"model": name, "messages": ASKED, "response_format": form, "n": 2, "seed": 5}
    texts = {0: "", 1: ""}
    if stream:
        for chunk in api.chat.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        for each in api.chat.completions.create(**asked).choices:
            texts[each.index] = each.message.content or ""
            assert each.finish_reason == "stop"
    for text in texts.values():
        value = json.loads(text)
        assert value.keys() == SCHEMA["properties"].keys()  # type: ignore[attr-defined]
        assert isinstance(value["is_full"], bool)


def test_a_completion_follows_a_pattern_and_each_prompt_of_a_batch_too(api: openai.OpenAI, name: str) -> None:
    form = {"type": "regex", "pattern": "[ab]{3}-[0-9]{2}"}
    said = api.completions.create(
        model=name, prompt=["the moon", "the cook"], max_tokens=40, extra_body={"response_format": form}
    )
    assert all(re.fullmatch("[ab]{3}-[0-9]{2}", choice.text) for choice in said.choices)


def test_one_of_several_texts(api: openai.OpenAI, name: str) -> None:
    extra = {"structured_outputs": {"choice": ["waxing", "waning"]}}
    said = api.completions.create(model=name, prompt="the moon is", max_tokens=40, extra_body=extra)
    assert said.choices[0].text in ("waxing", "waning")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"type": "no such type"}}}),
        ("response_format", {"type": "regex", "pattern": "("}),
        ("response_format", {"type": "text", "pattern": "a"}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"x": "y" * 70_000}}}),
        ("structured_outputs", {"regex": "a", "choice": ["b"]}),
        ("structured_outputs", {}),
    ],
)
def test_a_form_that_can_not_be_is_refused(client: httpx.Client, field: str, value: object) -> None:
    response = client.post("/v1/completions", json={"prompt": "hi", field: value})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].split(".")[0] == field


# -- tools ------------------------------------------------------------------------------------------------------------

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "phase", "description": "of the moon", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "rest"}},
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_call_that_must_be_made_is_made(api: openai.OpenAI, name: str, choice: str, stream: bool) -> None:
    wanted: Any = choice if choice == "required" else {"type": "function", "function": {"name": "phase"}}
    asked: dict[str, Any] = {"model": name, "messages": ASKED, "tools": TOOLS[:1], "tool_choice": wanted, "seed": 3}
    if stream:
        chunks = [chunk.choices[0] for chunk in api.chat.completions.create(**asked, stream=True)]
        calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
        assert "".join(chunk.delta.content or "" for chunk in chunks) == ""
        reason = chunks[-1].finish_reason
    else:
        answer = api.chat.completions.create(**asked).choices[0]
        assert answer.message.content is None
        calls, reason = list(answer.message.tool_calls or ()), answer.finish_reason
    assert reason == "tool_calls"
    (call,) = calls
    assert call.type == "function"
    assert call.id
    assert call.function.name == "phase"
    assert json.loads(call.function.arguments).keys() == {"is_full", "nights"}


def test_a_call_and_its_result_go_back_into_the_conversation(api: openai.OpenAI, name: str) -> None:
    called = api.chat.completions.create(
        model=name, messages=ASKED, tools=TOOLS[:1], tool_choice="required"
    ).choices[0].message  # fmt: skip
    assert called.tool_calls
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "full"}
    again: list[Any] = [*ASKED, called.model_dump(), result]
    assert api.chat.completions.create(model=name, messages=again, tools=TOOLS, max_tokens=3).choices


@pytest.mark.parametrize(
    ("param", "extra"),
    [
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "sleep"}}}),
        ("tools", {"tools": [TOOLS[0], TOOLS[0]]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "bad name"}}]}),
        ("response_format", {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}),
    ],
)
def test_tools_that_do_not_fit_together_are_refused(client: httpx.Client, param: str, extra: dict[str, Any]) -> None:
    response = client.post("/v1/chat/completions", json={"messages": ASKED} | extra)
    assert response.status_code == 400
    assert response.json()["error"]["param"].split("[")[0] == param


def test_eviction_is_told_whether_a_tool_or_a_human_comes_next(
    api: openai.OpenAI, name: str, server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[EndedBy | None] = []
    submit = server.engine.submit

    def listening(*args: Any, ended: EndedBy | None = None, **options: Any) -> Any:
        asked.append(ended)
        return submit(*args, ended=ended, **options)

    monkeypatch.setattr(server.engine, "submit", listening)
    api.chat.completions.create(model=name, messages=ASKED, tools=TOOLS, max_tokens=2)
    api.completions.create(model=name, prompt="the moon", max_tokens=2)
    of_chat, of_completion = asked
    assert of_completion is None  # nobody knows
    assert of_chat is not None
    done = Completion(0, 0, 0, "full", (1,), FinishReason.STOP, 3, 0, 0)
    assert of_chat(done) is StopReason.END_OF_TURN
    assert of_chat(replace(done, text='{"name": "rest", "arguments": {}}')) is StopReason.TOOL_CALL
