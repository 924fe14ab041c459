"""Requests that give pages of their own context back: they run, are named, use bounded blocks, and disturb nobody."""

import random
from typing import Any

import pytest

from kvpager.config.attend import EXACT, Attend, HeavyHitters, SinksAndWindow, SnapKV, describe
from kvpager.engine import Engine, Sampling
from tests.engine.engines import checked_step, first_choices
from tests.tiny_model import random_tokens, tiny_model

KINDS: list[Attend] = [SinksAndWindow(48, 4), HeavyHitters(64, 16, 4), SnapKV(48, 16, 4)]
PROMPT, ANSWER = 160, 60
BOUND = {"sinks-and-window": 5, "heavy-hitters": 5, "snapkv": 8}  # pages of 16 tokens while it generates


def run(engine: Engine, prompts: list[list[int]], attends: list[Attend]) -> tuple[list[Any], list[int]]:
    """The answers, and the pages that the first request had after each step in which it generated."""
    sampling = Sampling(max_tokens=ANSWER)
    requests = [engine.submit(prompt, sampling, attend=attend) for prompt, attend in zip(prompts, attends, strict=True)]
    (branch,) = requests[0].branches
    pages = []
    while engine.has_work:
        checked_step(engine)
        if branch.sequence is not None and branch.output:
            pages.append(sum(len(table.mapped_blocks()) for table in branch.sequence.tables))
    return first_choices(requests), pages


@pytest.mark.parametrize("kind", KINDS, ids=describe)
def test_a_request_that_forgets_beside_one_that_does_not(kind: Attend) -> None:
    generator = random.Random(1)
    prompts = [random_tokens(generator, PROMPT) for _ in range(2)]
    with Engine(tiny_model(), num_blocks=64, page_size=16, max_batch_tokens=64) as engine:
        exact, plain_pages = run(engine, prompts, [EXACT, EXACT])
    with Engine(tiny_model(), num_blocks=64, page_size=16, max_batch_tokens=64) as engine:
        found, pages = run(engine, prompts, [kind, EXACT])
        assert engine.statistics().approximate_requests == {describe(kind): 1}
    assert [answer.attention for answer in found] == [describe(kind), "exact"]
    assert found[1].token_ids == exact[1].token_ids
    assert len(found[0].token_ids) == ANSWER
    assert max(pages) <= BOUND[kind.name] < max(plain_pages)


@pytest.mark.parametrize("kind", KINDS, ids=describe)
def test_one_that_forgets_is_stopped_and_goes_on_in_a_pool_that_is_full(kind: Attend) -> None:
    generator = random.Random(3)
    with Engine(tiny_model(), num_blocks=17, page_size=16, max_batch_tokens=64) as engine:
        requests = [
            engine.submit(random_tokens(generator, 150), Sampling(max_tokens=200), attend=kind),
            engine.submit(random_tokens(generator, 20), Sampling(max_tokens=200), priority=9),
        ]
        while engine.has_work:
            checked_step(engine)
        forgetting, exact = first_choices(requests)
    assert len(exact.token_ids) == 200
    assert len(forgetting.token_ids) == (123 if isinstance(kind, SnapKV) else 200)  # what it keeps fills the pool
    assert forgetting.error == exact.error == ""
    assert forgetting.preemptions > 0
