"""Chats, as OpenAI's own client sees them."""

from typing import Any

import openai
import pytest

from tests.server.serving import Serving

HELLO: list[Any] = [{"role": "user", "content": "the moon"}]


def test_a_chat_is_what_the_engine_says_to_the_templates_text(api: openai.OpenAI, name: str, server: Serving) -> None:
    said = api.chat.completions.create(model=name, messages=HELLO, max_tokens=8, temperature=0)
    text = server.engine.tokenizer.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True)
    raw = api.completions.create(model=name, prompt=text, max_tokens=8, temperature=0)
    assert said.choices[0].message.content == raw.choices[0].text != ""
    assert (said.object, said.choices[0].message.role, said.choices[0].finish_reason) == (
        "chat.completion",
        "assistant",
        "length",
    )
    assert said.id.startswith("chatcmpl-")
    assert said.usage is not None
    assert said.usage.total_tokens == said.usage.prompt_tokens + 8


def test_a_stream_begins_with_the_role_and_ends_with_the_reason_and_the_usage(api: openai.OpenAI, name: str) -> None:
    whole = api.chat.completions.create(model=name, messages=HELLO, max_tokens=8, temperature=0)
    stream = api.chat.completions.create(
        model=name,
        messages=HELLO,
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},  # as guidellm sends it
    )
    first, *middle, usage = list(stream)
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in middle) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in middle] == [None] * (len(middle) - 1) + ["length"]
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 8
    assert all(chunk.usage is None for chunk in (first, *middle))
    assert len({chunk.id for chunk in (first, *middle, usage)}) == 1


def test_without_being_asked_a_stream_has_no_usage(api: openai.OpenAI, name: str) -> None:
    stream = api.chat.completions.create(model=name, messages=HELLO, max_tokens=4, stream=True)
    assert all(chunk.choices and chunk.usage is None for chunk in stream)


def test_several_choices_are_streamed_side_by_side(api: openai.OpenAI, name: str) -> None:
    asked: dict[str, Any] = {"model": name, "messages": HELLO, "max_tokens": 6, "n": 3, "seed": 7}
    whole = api.chat.completions.create(**asked)
    texts = {0: "", 1: "", 2: ""}
    for chunk in api.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert len(set(texts.values())) > 1


def test_logprobs_name_the_token_and_its_alternatives(api: openai.OpenAI, name: str) -> None:
    asked: dict[str, Any] = {"model": name, "messages": HELLO, "max_tokens": 5, "temperature": 0}
    said = api.chat.completions.create(**asked, logprobs=True, top_logprobs=3).choices[0]
    assert said.logprobs is not None
    assert said.logprobs.content is not None
    assert len(said.logprobs.content) == 5
    for token in said.logprobs.content:
        assert token.top_logprobs[0].token == token.token  # greedy: the chosen one is the likeliest
        assert len(token.top_logprobs) == 3
        assert token.bytes in (None, list(token.token.encode()))
    streamed = [
        token
        for chunk in api.chat.completions.create(**asked, logprobs=True, top_logprobs=3, stream=True)
        if chunk.choices[0].logprobs is not None
        for token in chunk.choices[0].logprobs.content or ()
    ]
    assert streamed == said.logprobs.content


def test_without_max_tokens_a_chat_may_fill_the_context(api: openai.OpenAI, name: str, server: Serving) -> None:
    long: list[Any] = [{"role": "user", "content": "the moon" * 160}]
    said = api.chat.completions.create(model=name, messages=long, extra_body={"ignore_eos": True})
    assert said.usage is not None
    assert said.usage.total_tokens == server.engine.max_request_tokens
    assert said.choices[0].finish_reason == "length"


def test_parts_of_text_are_joined(api: openai.OpenAI, name: str) -> None:
    parts: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "moon"}]}
    ]
    one, other = (
        api.chat.completions.create(model=name, messages=messages, max_tokens=6, temperature=0)
        for messages in (HELLO, parts)
    )
    assert one.choices[0].message.content == other.choices[0].message.content


def test_an_answer_can_be_sent_back_as_a_message(api: openai.OpenAI, name: str) -> None:
    said = api.chat.completions.create(model=name, messages=HELLO, max_tokens=4).choices[0].message
    again: list[Any] = [*HELLO, said.model_dump(), {"role": "user", "content": "and?"}]
    assert api.chat.completions.create(model=name, messages=again, max_tokens=4).choices


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit_count(api: openai.OpenAI, name: str, field: str) -> None:
    limit: dict[str, Any] = {field: 3}
    said = api.chat.completions.create(model=name, messages=HELLO, extra_body={"ignore_eos": True}, **limit)
    assert said.usage is not None
    assert said.usage.completion_tokens == 3
