"""Streams that fail: what was computed before is told all the same, however it came together with the failure."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from transformers import AutoTokenizer

from kvpager.engine.request import FinishReason, TokenEvent
from kvpager.engine.sampling_params import Sampling
from kvpager.server.answer import Answer, Ask, EngineGone
from kvpager.server.openai import chat_choices, completion_choices
from kvpager.server.openai.chat_choices import ChatChoices
from kvpager.server.openai.chat_request import ChatRequest
from kvpager.server.openai.completion_choices import CompletionChoices
from kvpager.server.openai.completion_request import CompletionRequest
from kvpager.server.openai.generation import Batch
from kvpager.server.openai.streaming import Chunks, events

WORDS = ["the", " moon", " is"]
CODES = {FinishReason.ERROR: "generation_failed", FinishReason.CANCELLED: "cancelled"}

Speak = Callable[[Batch], Iterable[bytes]]


def said(reason: FinishReason | None = None, *, held_back: str = "", choice: int = 0) -> list[TokenEvent]:
    """Three tokens of a choice, and its end."""
    told = [TokenEvent(1, choice, token, word) for token, word in enumerate(WORDS)]
    return told if reason is None else [*told, TokenEvent(1, choice, None, held_back, finish_reason=reason)]


def answer_of(*batches: Sequence[TokenEvent], n: int = 1) -> Answer:
    answer = Answer(Ask([1], Sampling(n=n)), lambda answer: None)
    for batch in batches:
        answer.take(list(batch))
    return answer


@pytest.fixture(scope="module")
def tokenizer(model: str) -> Any:
    return AutoTokenizer.from_pretrained(model)


def of_completion(answers: Sequence[Answer], tokenizer: Any, **fields: Any) -> Speak:
    body = CompletionRequest(prompt=["x"] * len(answers), **fields)
    choices = CompletionChoices(body, [[5]] * len(answers), ["x"] * len(answers), answers, tokenizer)
    return partial(choices.speak, Chunks({}, completion_choices.with_text, usage=False))


def of_chat(answers: Sequence[Answer], tokenizer: Any, **fields: Any) -> Speak:
    body = ChatRequest(messages=[{"role": "user", "content": "x"}], **fields)  # type: ignore[list-item]
    choices = ChatChoices(body, tokenizer, must_call=False)
    return partial(choices.speak, Chunks({}, chat_choices.with_text, usage=False))


def read(answers: Sequence[Answer], speak: Speak) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The choices that were streamed, and the error at the end; None: it ended well."""

    async def all_of() -> bytes:
        async with asyncio.timeout(60):
            return b"".join([part async for part in events(answers, speak)])

    *chunks, last = [each.removeprefix("data: ") for each in asyncio.run(all_of()).decode().strip().split("\n\n")]
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    return choices, None if last == "[DONE]" else json.loads(last)["error"]


def text_of(choices: Sequence[dict[str, Any]], index: int = 0) -> str:
    return "".join(c.get("text") or c.get("delta", {}).get("content", "") for c in choices if c["index"] == index)


@pytest.mark.parametrize("kind", [of_completion, of_chat], ids=["completion", "chat"])
@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "token-ids"])
@pytest.mark.parametrize("reason", list(CODES))
def test_tokens_that_come_with_a_failure_are_told(
    tokenizer: Any, kind: Callable[..., Speak], is_plain: bool, reason: FinishReason
) -> None:
    more = {} if is_plain else {"return_token_ids": True}
    answers = [answer_of(said(reason))]
    choices, error = read(answers, kind(answers, tokenizer, **more))
    assert text_of(choices) == "the moon is"
    assert error is not None
    assert error["code"] == CODES[reason]
    assert [choice["finish_reason"] for choice in choices] == [None]  # a failure is none of OpenAI's reasons
    assert is_plain or choices[0]["token_ids"] == [0, 1, 2]


@pytest.mark.parametrize("kind", [of_completion, of_chat], ids=["completion", "chat"])
def test_what_ends_well_in_one_batch_is_told_with_its_reason(tokenizer: Any, kind: Callable[..., Speak]) -> None:
    """The control."""
    answers = [answer_of(said(FinishReason.LENGTH))]
    choices, error = read(answers, kind(answers, tokenizer))
    assert (text_of(choices), error) == ("the moon is", None)
    assert choices[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("kind", [of_completion, of_chat], ids=["completion", "chat"])
def test_text_that_was_held_back_until_it_was_cancelled_is_told(tokenizer: Any, kind: Callable[..., Speak]) -> None:
    answers = [answer_of(said(FinishReason.CANCELLED, held_back=" made"))]
    assert text_of(read(answers, kind(answers, tokenizer))[0]) == "the moon is made"


@pytest.mark.parametrize("kind", [of_completion, of_chat], ids=["completion", "chat"])
def test_a_failure_alone_has_no_chunk(tokenizer: Any, kind: Callable[..., Speak]) -> None:
    answers = [answer_of([TokenEvent(1, 0, 7, "", finish_reason=FinishReason.ERROR)])]
    choices, error = read(answers, kind(answers, tokenizer, return_token_ids=True))
    assert choices == []
    assert error is not None


@pytest.mark.parametrize("kind", [of_completion, of_chat], ids=["completion", "chat"])
def test_other_choices_say_what_came_with_the_failure_of_one(tokenizer: Any, kind: Callable[..., Speak]) -> None:
    answers = [answer_of(said(FinishReason.ERROR), said(choice=1), n=2)]
    choices, error = read(answers, kind(answers, tokenizer, n=2))
    assert error is not None
    assert [text_of(choices, index) for index in range(2)] == ["the moon is"] * 2


def test_other_prompts_say_what_came_with_the_failure_of_one(tokenizer: Any) -> None:
    answers = [answer_of(said(FinishReason.ERROR)), answer_of(said()), answer_of(said(FinishReason.STOP))]
    choices, error = read(answers, of_completion(answers, tokenizer))
    assert error is not None
    assert [text_of(choices, index) for index in range(3)] == ["the moon is"] * 3


@pytest.mark.parametrize("prompts", [1, 2])
def test_tokens_that_came_before_the_engine_was_gone_are_told(tokenizer: Any, prompts: int) -> None:
    """As at the end of a drain, when a request expires and the engine is busy, and when the engine fails."""
    answers = [answer_of(said()) for _ in range(prompts)]
    for answer in answers:
        answer.fail(EngineGone("the server stops"))
    choices, error = read(answers, of_completion(answers, tokenizer))
    assert error is not None
    assert [text_of(choices, index) for index in range(prompts)] == ["the moon is"] * prompts


def test_tokens_that_come_while_others_are_read_are_told_before_the_end() -> None:
    """A client reads slowly; meanwhile there are more tokens, and then the engine is gone."""

    async def read_slowly() -> list[str]:
        answer, texts = answer_of(said()), []
        with suppress(EngineGone):
            async for batch in answer.events():
                if not texts:
                    answer.take(said())
                    answer.fail(EngineGone("the server stops"))
                texts.append("".join(event.text for event in batch))
        return texts

    assert asyncio.run(read_slowly()) == ["the moon is"] * 2
