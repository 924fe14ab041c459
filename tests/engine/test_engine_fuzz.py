"""Random work through the engine with a model that costs nothing: the bookkeeping of all its paths, checked every step.

The forward pass is replaced by logits that depend on the token and its position only, so wrong content is not seen here
(that is test_deterministic.py and the open cases); wrong books, lost pages, steps without work and endless work are.
"""

import random
from array import array
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel

from kvpager.cache.step import StepBatch
from kvpager.engine import Engine, EngineStatistics, FinishReason, PromptLogprob, Request, Sampling
from kvpager.errors import ConfigError, RequestError
from kvpager.prefix.hashing import Scope
from tests.engine.engines import assert_idle, checked_step, force_preemption
from tests.tiny_model import tiny_model

SHAPE = {
    "vocab_size": 512,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}


def model_of(kind: str) -> PreTrainedModel:
    if kind == "full":
        return tiny_model(hidden_size=16, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1)
    if kind == "window":
        return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=40))
    return Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=8, sliding_window=24))


def cheap_forward(batch: StepBatch, tokens: "array[int]", sample_at: np.ndarray) -> torch.Tensor:
    """Next token = a function of the last one and its position; sharply one of them."""
    positions = batch.positions()[sample_at]
    last = np.frombuffer(tokens, np.int32)[sample_at]
    logits = torch.zeros(len(sample_at), 512)
    logits[torch.arange(len(sample_at)), torch.from_numpy((last * 31 + positions * 7 + 1) % 512).long()] = 50.0
    return logits


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append((tokens[-1] * 31 + (len(tokens) - 1) * 7 + 1) % 512)
    return tokens[len(prompt) :]


def assert_scores(scores: "tuple[PromptLogprob | None, ...]", prompt: list[int]) -> None:
    assert scores[0] is None
    for place, (token, score) in enumerate(zip(prompt[1:], scores[1:], strict=True)):
        is_next = expected(prompt[: place + 1], 1) == [token]
        assert score is not None
        assert score.token == token
        assert abs(score.logprob - (0.0 if is_next else -50.0)) < 0.01


def random_options(generator: random.Random) -> dict[str, object]:
    page_size = generator.choice([1, 4, 16])
    deterministic = generator.random() < 0.3
    chunk = max(1, 64 // page_size) * page_size
    return {
        "page_size": page_size,
        "num_blocks": generator.randint(2 * (chunk if deterministic else 40), 400) // page_size + 8,
        "deterministic": deterministic,
        "max_batch_tokens": generator.choice([64, 100] if deterministic else [1, 3, 20, 64, 512]),
        "max_running": generator.choice([1, 2, 5, 16, 256]),
        "eviction_threshold": generator.choice([0.0, 0.0, 0.2]),
        "partial_hits": generator.random() < 0.7,
        "prefix_cache": generator.random() < 0.9,
    }


class Odd:
    """A guide: odd tokens only, though the model has even ones too."""

    def allowed(self) -> "npt.NDArray[np.bool_]":
        return np.arange(512) % 2 == 1

    def accept(self, token: int) -> None:
        assert token % 2

    def fork(self) -> "Odd":
        return Odd()

    may_end = is_complete = False


class Client:
    """Submits, cancels and looks on; knows what each request has to become."""

    def __init__(self, engine: Engine, generator: random.Random) -> None:
        self.engine, self.generator = engine, generator
        self.stems = [[generator.randrange(512) for _ in range(engine.max_tokens)] for _ in range(3)]
        self.extras = random.Random(generator.random())  # apart, so that they change nothing of the rest
        self.requests: list[Request] = []
        self.guided: set[int] = set()
        self.cancelled: set[int] = set()

    def submit(self) -> None:
        generator, engine = self.generator, self.engine
        length = min(generator.choice([1, 15, 16, 17, 33, 64, 70, 128, 200]), engine.max_tokens)
        shared = generator.choice([length, length - 1, generator.randint(0, length)])
        prompt = [*generator.choice(self.stems)[:shared], *(generator.randrange(512) for _ in range(length - shared))]
        sampling = Sampling(
            max_tokens=generator.choice([1, 2, 5, 30, 80]),
            n=min(generator.choice([1, 1, 1, 2, 5]), engine.options.max_running),
        )
        scope = Scope(salt=generator.choice(["", "", "x"]))
        priority, guide = generator.choice([0, 0, 1, 4]), None
        if self.extras.random() < 0.2:
            sampling = replace(sampling, prompt_logprobs=self.extras.choice([0, 2]))
            sampling = replace(sampling, max_tokens=self.extras.choice([0, sampling.max_tokens]))
        if self.extras.random() < 0.1:
            guide = Odd()
        request = engine.submit(prompt, sampling, priority=priority, scope=scope, guide=guide)
        self.requests.append(request)
        if guide is not None:
            self.guided.add(request.id)

    def cancel(self) -> None:
        open_ones = [request for request in self.requests if not request.is_finished]
        if open_ones:
            request = self.generator.choice(open_ones)
            assert self.engine.cancel(request.id)
            self.cancelled.add(request.id)
            self.engine.check()

    def verify(self) -> None:
        for request in self.requests:
            prompt = list(request.prompt)
            whole = min(request.sampling.max_tokens, self.engine.max_tokens + 1 - len(prompt))
            for done in request.completions():
                count = len(done.token_ids)
                if request.id in self.guided:
                    assert all(token % 2 for token in done.token_ids)
                else:
                    assert list(done.token_ids) == expected(prompt, count)
                if request.sampling.prompt_logprobs is not None and done.finish_reason is FinishReason.LENGTH:
                    assert_scores(done.prompt_logprobs, prompt)
                if request.id not in self.cancelled:
                    assert (count, done.finish_reason) == (whole, FinishReason.LENGTH)
                    assert done.preemptions <= 40


def run_random(kind: str, seed: int) -> EngineStatistics:
    generator = random.Random(f"{kind} {seed}")
    options = random_options(generator)
    print(f"replay: run_random({kind!r}, {seed}) with {options}")
    with Engine(model_of(kind), **options) as engine:
        engine.runner.forward = cheap_forward  # type: ignore[method-assign]
        client = Client(engine, generator)
        for _ in range(100):
            for _ in range(generator.choice([0, 0, 1, 1, 3])):
                if len(client.requests) < 20:
                    client.submit()
            if generator.random() < 0.05:
                client.cancel()
            if generator.random() < 0.05:
                force_preemption(engine, generator.randrange(-1, 1))
            if engine.has_work:
                checked_step(engine)
        steps = 0
        while engine.has_work:
            checked_step(engine)
            steps += 1
            assert steps < 6000, "no end"
        client.verify()
        assert engine.statistics().finished_requests == len(client.requests)
        assert_idle(engine)
        return engine.statistics()


@pytest.mark.parametrize("kind", ["full", "window", "mixed"])
def test_random_work_ends_right_with_all_books_in_order(kind: str) -> None:
    seen = [run_random(kind, seed) for seed in range(8)]
    assert sum(each.prefix_tokens for each in seen) > 200  # controls: there were hits, and pressure
    assert sum(each.preemptions for each in seen) > 20


@pytest.mark.parametrize("kind", ["window", "mixed"])
def test_a_windowed_model_runs_in_the_smallest_pool_that_the_engine_accepts(kind: str) -> None:
    """A canonical piece of 64 tokens maps four pages at once in a group that otherwise holds three or four."""
    for deterministic in (False, True):
        accepted = 0
        for num_blocks in range(1, 16):
            try:
                engine = Engine(model_of(kind), page_size=16, num_blocks=num_blocks, deterministic=deterministic)
            except ConfigError:
                assert not accepted  # too few to run; from some number on it is accepted
                continue
            accepted += 1
            with engine:
                engine.runner.forward = cheap_forward  # type: ignore[method-assign]
                prompt = [3] * engine.max_tokens
                with pytest.raises(RequestError, match=f"at most {engine.max_tokens} fit"):
                    engine.submit([*prompt, 3])
                for length in (engine.max_tokens, max(1, engine.max_tokens - 30)):
                    request = engine.submit(prompt[:length], Sampling(max_tokens=40))
                    for _ in range(1200):
                        if not engine.has_work:
                            break
                        checked_step(engine)
                    assert request.is_finished, f"kind={kind} deterministic={deterministic} num_blocks={num_blocks}"
                assert_idle(engine)
        assert accepted > 5


def test_a_deterministic_hit_ends_at_a_canonical_border_even_if_a_window_lost_pages() -> None:
    """A hit of 144 tokens, cut to 128, needs the window's pages 6 and 7. Without 6, but with 4 and 5, it ends at 96."""
    generator = random.Random(0)
    prompt = [generator.randrange(512) for _ in range(200)]
    with Engine(model_of("mixed"), page_size=16, num_blocks=100, deterministic=True) as engine:
        engine.runner.forward = cheap_forward  # type: ignore[method-assign]
        windowed = next(g for g, group in enumerate(engine.layout.groups) if group.window is not None)

        def prefix_of(tokens: list[int]) -> int:
            request = engine.submit(tokens, Sampling(max_tokens=1))
            while engine.has_work:
                checked_step(engine)
            return request.completions()[0].prefix_tokens

        assert prefix_of(prompt) == 0
        index, match = engine.cache.index, engine.cache.lookup(prompt)
        assert len(match.nodes) == 192 // 16
        for node in match.nodes[:7]:
            block = index.block(node, windowed)
            assert block is not None
            assert engine.cache._reclaimer._evict([block]) == 1  # the window moved on; pressure took its old pages
        assert prefix_of([*prompt[:100], *prompt[:50]]) == 0  # brings pages 4 and 5 back, but not 6
        assert [index.block(node, windowed) is not None for node in match.nodes[4:8]] == [True, True, False, True]
        assert engine.cache.lookup(prompt[:150]).num_tokens == 144
        assert engine.cache.lookup(prompt[:150], max_prefix=128).num_tokens == 96
        assert prefix_of(prompt[:150]) == 64
        assert_idle(engine)
