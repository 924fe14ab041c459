"""Completions, as OpenAI's own client sees them."""

from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.server.serving import Serving


def test_a_text_and_its_tokens_are_the_same_prompt(api: openai.OpenAI, name: str, server: Serving) -> None:
    tokens = server.engine.tokenizer.encode("the moon")
    asked: dict[str, Any] = {"model": name, "max_tokens": 6, "temperature": 0}
    texts = [
        api.completions.create(prompt=prompt, **asked).choices[0].text
        for prompt in ("the moon", ["the moon"], tokens, [tokens])
    ]
    assert len(set(texts)) == 1


def test_choices_of_a_batch_are_in_order_and_the_usage_adds_up(api: openai.OpenAI, name: str) -> None:
    asked: dict[str, Any] = {"model": name, "max_tokens": 5, "seed": 3, "extra_body": {"ignore_eos": True}}
    both = api.completions.create(prompt=["the moon", "a page table"], n=2, **asked)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    alone = [api.completions.create(prompt=prompt, n=2, **asked) for prompt in ("the moon", "a page table")]
    assert [choice.text for choice in both.choices] == [c.text for one in alone for c in one.choices]
    assert both.usage is not None
    assert both.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone if one.usage)
    assert both.usage.completion_tokens == 4 * 5


def test_a_streamed_batch_is_the_same_text(api: openai.OpenAI, name: str) -> None:
    asked: dict[str, Any] = {"model": name, "prompt": ["the moon", "a page table"], "max_tokens": 6, "temperature": 0}
    whole = api.completions.create(**asked, echo=True)
    texts = {0: "", 1: ""}
    reasons = {}
    for chunk in api.completions.create(**asked, echo=True, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert texts[0].startswith("the moon")
    assert set(reasons.values()) == {"length"}


def test_the_same_seed_gives_the_same_text(api: openai.OpenAI, name: str) -> None:
    def ask(seed: int) -> str:
        return api.completions.create(model=name, prompt="the moon", max_tokens=12, seed=seed).choices[0].text

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(6)}) > 1


def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(api: openai.OpenAI, name: str) -> None:
    asked: dict[str, Any] = {"model": name, "prompt": "the moon", "max_tokens": 12, "temperature": 0}
    whole = api.completions.create(**asked).choices[0]
    stop = whole.text[3:5]
    cut = api.completions.create(**asked, stop=[stop, "never there"]).choices[0]
    assert (cut.text, cut.finish_reason) == (whole.text[: whole.text.index(stop)], "stop")
    assert whole.finish_reason == "length"


def test_a_bias_forbids_a_token(api: openai.OpenAI, name: str, server: Serving) -> None:
    asked: dict[str, Any] = {"model": name, "prompt": "the moon", "max_tokens": 1, "temperature": 0, "logprobs": 1}
    token = api.completions.create(**asked, extra_body={"return_token_ids": True}).choices[0]
    (chosen,) = token.model_extra["token_ids"] if token.model_extra else ()
    other = api.completions.create(**asked, logit_bias={str(chosen): -100}).choices[0]
    assert other.text != token.text


def test_logprobs_in_columns(api: openai.OpenAI, name: str) -> None:
    asked: dict[str, Any] = {"model": name, "prompt": "the moon", "max_tokens": 5, "temperature": 0}
    said = api.completions.create(**asked, logprobs=2).choices[0]
    columns = said.logprobs
    assert columns is not None
    assert columns.tokens is not None
    assert columns.token_logprobs is not None
    assert columns.top_logprobs is not None
    assert columns.text_offset is not None
    assert len(columns.tokens) == len(columns.token_logprobs) == len(columns.top_logprobs) == 5
    assert "".join(columns.tokens) == said.text
    assert [said.text[at] for at in columns.text_offset] == [token[0] for token in columns.tokens]
    for token, logprob, top in zip(columns.tokens, columns.token_logprobs, columns.top_logprobs, strict=True):
        assert logprob == max(top.values()) == top[token]
    chosen = api.completions.create(**asked, logprobs=0).choices[0].logprobs
    assert chosen is not None
    assert (chosen.token_logprobs, chosen.top_logprobs) == (columns.token_logprobs, None)


def test_cached_tokens_are_always_told_and_by_tier(api: openai.OpenAI, name: str) -> None:
    prompt = "the cook writes down what is left, and so do the helpers"
    cached = []
    for _ in range(2):
        usage = api.completions.create(model=name, prompt=prompt, max_tokens=1, extra_body={"cache_salt": "own"}).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        details = usage.prompt_tokens_details.model_dump()
        assert details["cached_tokens_by_tier"] == {"device": details["cached_tokens"]}
        cached.append(details["cached_tokens"])
    assert cached[0] == 0
    assert cached[1] > 0


def test_salts_keep_prefixes_apart(api: openai.OpenAI, name: str) -> None:
    def cached(salt: str) -> int | None:
        prompt = "the helpers peel potatoes until noon, each night"
        answer = api.completions.create(model=name, prompt=prompt, max_tokens=1, extra_body={"cache_salt": salt})
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens

    assert (cached("one"), cached("another")) == (0, 0)
    assert (cached("one") or 0) > 0


def test_approximate_attention_is_named(api: openai.OpenAI, name: str) -> None:
    asked: dict[str, Any] = {"model": name, "prompt": "the moon", "max_tokens": 2}
    exact = api.completions.create(**asked).usage
    assert exact is not None
    assert "attention" not in exact.model_dump()
    usage = api.completions.create(**asked, extra_body={"attend": "sinks-and-window:window=64,sinks=4"}).usage
    assert usage is not None
    assert usage.model_dump()["attention"].startswith("sinks-and-window:")
    assert "skipped_mass" not in usage.model_dump()
    asked |= {"prompt": list(range(5, 155)), "extra_body": {"attend": "selective:budget=32,sinks=1,recent=1"}}
    usage = api.completions.create(**asked).usage
    assert usage is not None
    said = usage.model_dump()
    assert (said["attention"], said["selective_steps"]) == ("selective:budget=32,sinks=1,recent=1,reuse=1", 1)
    assert 0 < said["skipped_mass"] < 1
    assert said["digest_bytes"] > said["kept_row_bytes"] == 0


@pytest.mark.parametrize("field", ["user", "metadata", "store", "service_tier"])
def test_what_says_nothing_to_a_model_is_accepted(api: openai.OpenAI, name: str, field: str) -> None:
    answer = api.completions.create(model=name, prompt="the moon", max_tokens=1, extra_body={field: "anything"})
    assert len(answer.choices) == 1


def scored(server: Serving, tokens: list[int]) -> torch.Tensor:
    """Log-probabilities after each token, by the model itself."""
    model = AutoModelForCausalLM.from_pretrained(server.engine.options.model)
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].log_softmax(-1)


@pytest.mark.parametrize("as_tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_echo_with_logprobs_scores_the_prompt_as_the_model_does(
    api: openai.OpenAI, name: str, server: Serving, as_tokens: bool, stream: bool
) -> None:
    text = "the cook writes down what is left, \u20ac 5"
    tokens = server.engine.tokenizer.encode(text)
    asked: dict[str, Any] = {"model": name, "prompt": tokens if as_tokens else text, "max_tokens": 1, "seed": 1234}
    asked |= {"logprobs": 1, "echo": True, "temperature": 0}  # as lm-eval's local-completions asks
    chunks = list(api.completions.create(**asked, stream=True)) if stream else [api.completions.create(**asked)]
    columns = [chunk.choices[0].logprobs.model_dump() for chunk in chunks if chunk.choices[0].logprobs]
    shown, logprobs, top, offsets = (
        [value for each in columns for value in each[key]]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    )
    said = "".join(chunk.choices[0].text for chunk in chunks)
    assert said.startswith(text)
    assert len(shown) == len(tokens) + 1
    assert (logprobs[0], top[0]) == (None, None)
    expected = scored(server, tokens)
    assert logprobs[1:-1] == pytest.approx(
        [row[t].item() for row, t in zip(expected, tokens[1:], strict=False)], abs=1e-3
    )
    assert logprobs[-1] == pytest.approx(expected[-1].max().item(), abs=1e-3)
    for logprob, best, row in zip(logprobs[1:], top[1:], expected, strict=True):
        assert max(best.values()) == pytest.approx(row.max().item(), abs=1e-3)
        assert (logprob == max(best.values())) == (logprob == pytest.approx(row.max().item(), abs=1e-3))
    assert offsets == sorted(offsets)
    assert offsets[-1] == len(text)
    plain = [at for at, token in enumerate(shown) if "\ufffd" not in token and token]
    assert all(said[offsets[at] :].startswith(shown[at]) for at in plain)


def test_a_prompt_can_be_scored_without_generating_anything(api: openai.OpenAI, name: str) -> None:
    said = api.completions.create(model=name, prompt="the moon", max_tokens=0, echo=True, logprobs=1)
    assert said.choices[0].text == "the moon"
    assert said.choices[0].logprobs is not None
    assert len(said.choices[0].logprobs.tokens or ()) == 3
    assert said.usage is not None
    assert said.usage.completion_tokens == 0


def test_min_tokens_keep_an_answer_going(api: openai.OpenAI, name: str, server: Serving) -> None:
    end = server.engine.tokenizer.eos_token_id
    asked: dict[str, Any] = {"model": name, "prompt": "the moon", "max_tokens": 6, "logit_bias": {str(end): 100}}
    short = api.completions.create(**asked).usage
    longer = api.completions.create(**asked, extra_body={"min_tokens": 4}).usage
    assert short is not None
    assert longer is not None
    assert short.completion_tokens == 1
    assert longer.completion_tokens >= 4
