"""Open case O-24 through the engine: the same tokens on every path that exists now.

Cold, device hit, preempted (once at one of several steps, twice, every few steps), batches of 1, 8 and 32, chunks of
16 and 64 tokens, as a fork. Host, disk and remote hits come with their tiers. Preemption is forced between two steps by
the engine's own hand. In deterministic mode the logits and the bytes of K and V are compared as well (a few prompts on
every path here, random schedules in tests/engine/test_deterministic.py).

All 32 prompts run on every path whose batches have at least 8. On those of smaller batches, which take longest, 8
prompts run, and all of them by hand.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from kvpager.engine import Engine, Request, Sampling
from tests.engine.determinism import Recorder, Rows
from tests.engine.engines import ask, assert_idle, checked_step, first_choices, force_preemption
from tests.tiny_model import ref, sharp_prompt, tiny_model

pytestmark = pytest.mark.slow

NEW = 40
ALL, FEW = 32, 8  # prompts


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = random.Random(24)
    return [sharp_prompt(generator, generator.randint(40, 150), NEW) for _ in range(ALL)]


@dataclass(frozen=True)
class Path:
    """How the prompts run. ``preempt_at``: steps before which every running branch is stopped."""

    batch: int = 8
    chunk: int = 512
    n: int = 1
    warm: bool = False
    preempt_at: Callable[[int], bool] = lambda step: False
    preemptions: int = 0  # that every request must have had, at least
    options: dict[str, object] = field(default_factory=dict)


PATHS = {
    "cold, batch 1": Path(batch=1),
    "cold, batch 8": Path(),
    "cold, batch 32": Path(batch=32),
    "device hit": Path(warm=True),
    "device hit, whole pages": Path(warm=True, options={"partial_hits": False}),
    "no cache": Path(warm=True, options={"prefix_cache": False}),
    "chunk 16": Path(chunk=16),
    "chunk 64": Path(chunk=64),
    "fork": Path(n=2, batch=4),
    "preempted after step 1": Path(batch=2, preempt_at=lambda step: step == 1, preemptions=1),
    "preempted after step 7": Path(preempt_at=lambda step: step == 7, preemptions=1),
    "preempted after step 20": Path(preempt_at=lambda step: step == 20, preemptions=1),
    "preempted after step 39": Path(preempt_at=lambda step: step == 39, preemptions=1),
    "preempted twice": Path(preempt_at=lambda step: step in (9, 25), preemptions=2),
    "preempted every 5 steps": Path(preempt_at=lambda step: step % 5 == 4, preemptions=7),
    "preempted twice without cache": Path(
        preempt_at=lambda step: step in (9, 25), preemptions=2, options={"prefix_cache": False}
    ),
    "preempted as a fork": Path(n=2, batch=4, preempt_at=lambda step: step in (9, 25), preemptions=2),
    "preempted, chunk 16": Path(preempt_at=lambda step: step in (12, 30), preemptions=2, chunk=16, batch=2),
}


def run(engine: Engine, prompts: list[list[int]], path: Path) -> list[Request]:
    requests: list[Request] = []
    for first in range(0, len(prompts), path.batch):
        requests += ask(engine, prompts[first : first + path.batch], Sampling(max_tokens=NEW, n=path.n))
        step = 0
        while engine.has_work:
            if path.preempt_at(step):
                while force_preemption(engine):
                    pass
            checked_step(engine)
            step += 1
    return requests


RUNS = [pytest.param(name, FEW if path.batch < FEW else ALL, id=name) for name, path in PATHS.items()]
RUNS += [
    pytest.param(name, ALL, id=f"{name}, all", marks=pytest.mark.heavy)
    for name, path in PATHS.items()
    if path.batch < FEW
]


@pytest.mark.parametrize(("name", "count"), RUNS)
def test_the_tokens_are_those_of_plain_generation(prompts: list[list[int]], name: str, count: int) -> None:
    path, prompts = PATHS[name], prompts[:count]
    with Engine(tiny_model(), page_size=16, num_blocks=400, max_batch_tokens=path.chunk, **path.options) as engine:
        if path.warm:
            list(engine.generate(prompts, Sampling(max_tokens=1)))
        requests = run(engine, prompts, path)
        for request, prompt in zip(requests, prompts, strict=True):
            for done in request.completions():
                assert list(done.token_ids) == ref(prompt, NEW), f"{name}, prompt {prompts.index(prompt)}"
                assert done.preemptions >= path.preemptions
        hits = [done.prefix_tokens for done in first_choices(requests)]
        if path.warm and path.options.get("prefix_cache", True):
            assert min(hits) >= 32  # a prompt is found at least in whole pages
        assert_idle(engine)


def bits(prompts: list[list[int]], path: Path) -> list[tuple[Rows, torch.Tensor]]:
    """Of every choice: the rows of logits, and K and V."""
    with Engine(
        tiny_model(), page_size=16, num_blocks=400, deterministic=True, max_batch_tokens=max(64, path.chunk)
    ) as engine:
        if path.warm:
            list(engine.generate(prompts, Sampling(max_tokens=1)))
        recorder = Recorder()
        with recorder.listening_to(engine):
            requests = run(engine, prompts, path)
        for request, prompt in zip(requests, prompts, strict=True):
            assert all(list(done.token_ids) == ref(prompt, NEW) for done in request.completions())
        branches = [branch for request in requests for branch in request.branches]
        return [(recorder.rows[branch.key], recorder.key_values[branch.key]) for branch in branches]


def test_in_deterministic_mode_logits_keys_and_values_are_bit_equal_on_every_path(prompts: list[list[int]]) -> None:
    some = prompts[:4]
    alone = bits(some, PATHS["cold, batch 1"])
    for name, path in PATHS.items():
        if path.options or path.batch == 1 or "every" in name:  # answers are recomputed token by token: it never ends
            continue
        expected = [each for each in alone for _ in range(path.n)]
        for at, (found, solo) in enumerate(zip(bits(some, path), expected, strict=True)):
            where = f"{name}, prompt {at // path.n}, choice {at % path.n}"
            missing = 1 if at % path.n else 0  # the first row of a fork is that of choice 0
            assert len(found[0]) >= NEW - missing, where
            assert found[0] == {known: solo[0][known] for known in found[0]}, where
            assert torch.equal(found[1].view(torch.int32), solo[1].view(torch.int32)), where
