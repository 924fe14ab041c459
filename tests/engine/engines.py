"""What the tests of the engine share: driving it step by step with all books checked, and a tokenizer of numbers.

With tiers below, a step may wait instead of computing, and copies end when they do: tests/engine/tiers.py is for that.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvpager.engine import Completion, Engine, Request, Sampling, TokenEvent, slow_steps
from kvpager.engine.request import BranchState
from kvpager.memory.block_pool import PoolCounts

MAX_STEPS = 20_000


class Numbers:
    """A tokenizer in which each token is its number and a space: "17 4 ". It does not know ids from ``known`` on."""

    def __init__(self, known: int = 1 << 31) -> None:
        self.known = known

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        for token in token_ids:
            if token >= self.known:
                raise IndexError(f"piece id {token} is out of range")
        return "".join(f"{token} " for token in token_ids)


def text_of(tokens: Iterable[int]) -> str:
    return Numbers().decode(list(tokens), skip_special_tokens=False)


def block_counts(engine: Engine) -> PoolCounts:
    """The pool's counts; identity ID holds."""
    counts = engine.cache.pool.counts()
    assert counts.free + counts.used + counts.cached + counts.moving == counts.total
    assert min(counts.free, counts.used, counts.cached, counts.moving) >= 0
    return counts


def checked_step(engine: Engine) -> list[TokenEvent]:
    """One step, and all that must hold after it."""
    assert engine.cache.lower is None, "checked_pass is for an engine with tiers"
    before = engine.statistics()
    events = engine.step()
    engine.check()
    after = engine.statistics()
    assert after.steps == before.steps + 1, "a step without work"
    for name in ("finished_requests", "prompt_tokens", "prefix_tokens", "generated_tokens", "preemptions"):
        assert getattr(after, name) >= getattr(before, name), f"{name} went down"
    assert after.generated_tokens - before.generated_tokens == sum(event.token is not None for event in events)
    assert after.running <= engine.options.max_running
    assert block_counts(engine).moving == 0
    return events


def drive(engine: Engine, between: Callable[[int], object] = lambda number: None) -> int:
    """Steps until nothing is left, ``between(number)`` before each; returns how many."""
    for number in range(MAX_STEPS):
        between(number)
        if not engine.has_work:
            return number
        checked_step(engine)
    raise AssertionError(f"not done after {MAX_STEPS} steps")


def ask(engine: Engine, prompts: Iterable[list[int]], sampling: Sampling | list[Sampling]) -> list[Request]:
    """Submits all prompts, with the same options or each with its own."""
    prompts = list(prompts)
    each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
    return [engine.submit(prompt, own, index=i) for i, (prompt, own) in enumerate(zip(prompts, each, strict=True))]


def first_choices(requests: Iterable[Request]) -> list[Completion]:
    return [request.completions()[0] for request in requests]


def answers(engine: Engine, prompts: Iterable[list[int]], sampling: Sampling | list[Sampling]) -> list[list[int]]:
    """The tokens of each prompt's first choice, every step checked."""
    requests = ask(engine, prompts, sampling)
    drive(engine)
    return [list(done.token_ids) for done in first_choices(requests)]


def assert_idle(engine: Engine) -> None:
    """I29: an empty system uses nothing."""
    assert engine.cache.lower is None, "assert_still is for an engine with tiers"
    engine.check()
    counts, statistics = block_counts(engine), engine.statistics()
    assert (counts.used, counts.moving) == (0, 0)
    assert (statistics.running, statistics.waiting) == (0, 0)
    assert not engine.has_work
    assert engine.cache.statistics().sequences == 0


def force_preemption(engine: Engine, choice: int = -1) -> bool:
    """Preempts a running branch between two steps, by the engine's own hand; False if none runs."""
    running = engine.branches()
    if not running:
        return False
    branch = running[choice]
    engine._queues.preempt(branch)
    assert branch.state is BranchState.WAITING
    engine.check()
    return True


@contextmanager
def wrapped(owner: Any, name: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """``owner.name(...)`` calls ``wrapper(original, ...)`` inside."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: wrapper(original, *args, **kwargs))
    try:
        yield
    finally:
        delattr(owner, name)


@contextmanager
def held_in_the_middle(engine: Engine) -> Iterator[None]:
    """The lane gives its baton back at each breath, and has one turn a step, so that its steps take many of these."""

    def breathe(original: Callable[[], None]) -> None:
        engine._loop.slow.lane._until = float("-inf")
        original()

    with pytest.MonkeyPatch.context() as patch, wrapped(engine._loop.slow.lane, "breathe", breathe):
        patch.setattr(slow_steps, "ALONE_SECONDS", 0.0)
        yield
