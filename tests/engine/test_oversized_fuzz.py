"""Random work of which some does not fit on the device, with a model that costs nothing: every request ends right.

As in test_loading_fuzz.py, the books of everything are checked after every pass. The lane's thread and the tiers' are
the real ones, so a run can't be repeated to the last pass; what is asked and what has to come of it can.
"""

import random
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedModel

from kvpager import DiskTier, HostTier
from kvpager.cache.retention_terms import Retention
from kvpager.cache.step import StepBatch
from kvpager.config import TierOptions
from kvpager.engine import Engine, EngineStatistics, FinishReason, Request, Sampling
from kvpager.errors import RequestError
from tests.engine.oversized import assert_nothing_left
from tests.engine.test_engine_fuzz import SHAPE, cheap_forward, expected
from tests.engine.tiers import checked_pass, drive
from tests.tiny_model import tiny_model

PAGE = 4
SELECTIVE = "selective:budget=32,sinks=4,recent=8"


def model_of(kind: str) -> PreTrainedModel:
    if kind == "full":
        return tiny_model(hidden_size=16, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1)
    return Gemma2ForCausalLM(Gemma2Config(**SHAPE | {"max_position_embeddings": 700}, head_dim=8, sliding_window=24))


def cheap_slow_forward(
    batch: StepBatch, tokens: "array[int]", sample_at: np.ndarray, breathe: Callable[[], None], threads: int
) -> torch.Tensor:
    breathe()
    return cheap_forward(batch, tokens, sample_at)


class Client:
    """Submits, cancels and pins; knows what each request has to become."""

    def __init__(self, engine: Engine, generator: random.Random, may_fail: bool) -> None:
        self.engine, self.generator = engine, generator
        self.may_fail = may_fail  # the tiers may be too small for what is asked at once
        self.stem = [generator.randrange(512) for _ in range(engine.max_request_tokens)]
        self.requests: list[Request] = []
        self.cancelled: set[int] = set()

    def submit(self) -> None:
        generator, engine = self.generator, self.engine
        longest = generator.choice([engine.max_tokens // 2, engine.max_request_tokens, engine.max_request_tokens])
        length = generator.randint(1, longest)
        shared = generator.choice([length, length - 1, generator.randint(0, length), 0])
        prompt = [*self.stem[:shared], *(generator.randrange(512) for _ in range(length - shared))]
        sampling = Sampling(max_tokens=generator.choice([1, 2, 5, 20]), n=generator.choice([1, 1, 1, 2, 3]))
        retain = [Retention(0, generator.randint(1, length), pin=True)] if generator.random() < 0.3 else []
        attend = SELECTIVE if generator.random() < 0.2 else None
        try:
            request = engine.submit(
                prompt, sampling, priority=generator.choice([0, 0, 1, 3]), retain=retain, attend=attend
            )
        except RequestError:  # so many choices of it have no room to be side by side
            if sampling.n == 1:
                raise
            return
        self.requests.append(request)

    def disturb(self) -> None:
        """Cancels one, or stops one that is in no step."""
        generator, engine = self.generator, self.engine
        if generator.random() < 0.5:
            request = generator.choice(self.requests)
            if engine.cancel(request.id):
                self.cancelled.add(request.id)
        elif idle := [branch for branch in engine.branches() if branch not in engine._loop.slow.branches]:
            engine._queues.preempt(generator.choice(idle))
        engine.check()

    def verify(self) -> None:
        for request in self.requests:
            for done in request.completions():
                count = len(done.token_ids)
                assert list(done.token_ids) == expected(list(request.prompt), count)
                if request.id in self.cancelled or (self.may_fail and done.finish_reason is FinishReason.ERROR):
                    continue
                assert done.finish_reason is FinishReason.LENGTH, done.error
                whole = min(request.sampling.max_tokens, request.limit + 1 - len(request.prompt))
                assert count == whole


def run_random(kind: str, seed: int, folder: Path) -> EngineStatistics:
    generator = random.Random(f"oversized {kind} {seed}")
    deterministic = generator.random() < 0.4
    host, disk = HostTier(pages=generator.choice([60, 400, 2000])), DiskTier(folder / f"{kind}{seed}", "8MiB")
    tiers: list[TierOptions] = generator.choice([[host], [disk], [host, disk]])
    options = {
        "page_size": PAGE,
        "num_blocks": generator.randint(70, 110),
        "deterministic": deterministic,
        "resident_share": generator.choice([0.4, 0.6, 0.9]),
        "max_batch_tokens": generator.choice([64, 200] if deterministic else [8, 64, 512]),
        "max_running": generator.choice([3, 16]),
        "write_back": generator.choice(["through", "back", "selective"]),
    }
    print(f"replay: run_random({kind!r}, {seed}) with {options} over {tiers}")
    with Engine(model_of(kind), tiers=tiers, **options) as engine:
        engine.runner.forward = cheap_forward  # type: ignore[method-assign]
        engine.runner.slow_forward = cheap_slow_forward  # type: ignore[method-assign]
        client = Client(engine, generator, may_fail=host in tiers)
        for _ in range(60):
            if len(client.requests) < 12 and generator.random() < 0.4:
                client.submit()
            if client.requests and generator.random() < 0.08:
                client.disturb()
            if engine.has_work:
                checked_pass(engine)
        drive(engine, most=20000)
        client.verify()
        assert engine.statistics().finished_requests == len(client.requests)
        assert_nothing_left(engine)
        return engine.statistics()


def test_the_longest_request_is_one_that_is_taken() -> None:
    """In deterministic mode the pages of a piece are written before those before a window go."""
    options = {"page_size": PAGE, "num_blocks": 98, "deterministic": True, "resident_share": 0.6}
    with Engine(model_of("mixed"), tiers=[HostTier(pages=60)], **options) as engine:
        longest = engine.max_request_tokens
        assert longest > engine.max_tokens
        engine.submit([1] * longest, Sampling(max_tokens=1))
        with pytest.raises(RequestError, match=f"at most {longest} fit"):
            engine.submit([1] * (longest + 1), Sampling(max_tokens=1))


@pytest.mark.parametrize("kind", ["full", "mixed"])
def test_random_work_larger_than_the_device_ends_right(kind: str, tmp_path: Path) -> None:
    seen = [run_random(kind, seed, tmp_path) for seed in range(3, 6)]
    assert sum(each.oversized_requests for each in seen) > 5  # controls: the second lane, and pressure
    assert sum(each.preemptions for each in seen) > 0


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["full", "mixed"])
def test_much_random_work_larger_than_the_device(kind: str, tmp_path: Path) -> None:
    for seed in range(6, 60):
        run_random(kind, seed, tmp_path)
