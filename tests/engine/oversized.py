"""What the tests of requests that do not fit share: tiers below, prompts and their all-resident answers, and faults."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kvpager import DiskTier, HostTier, RemoteTier
from kvpager.config import TierOptions
from kvpager.engine import Engine, Request, Sampling
from kvpager.errors import TierError
from tests.engine.determinism import Recorder, Rows
from tests.engine.engines import MAX_STEPS, block_counts, wrapped
from tests.tiny_model import random_tokens, tiny_model

NEW = 6
CONTEXT = 4096
PAGE = 4
GREEDY = Sampling(max_tokens=NEW)


def model() -> Any:
    return tiny_model(max_position_embeddings=CONTEXT, num_hidden_layers=2)


def tiers_below(kind: str, folder: Path, num_pages: int) -> list[TierOptions]:
    """``host+disk``: the host holds a third of the pages."""
    folder.mkdir(exist_ok=True)
    disk = DiskTier(folder / "disk", "64MiB")
    return {
        "host": [HostTier(pages=2 * num_pages)],
        "disk": [disk],
        "host+disk": [HostTier(pages=num_pages // 3), disk],
        "remote": [RemoteTier("memory:///", prefix=f"{folder.name}/")],
    }[kind]


@dataclass
class Answer:
    """What comes of a prompt where all its pages are resident: tokens, and the bits of the logits."""

    tokens: list[int]
    rows: Rows


@lru_cache(maxsize=64)
def _answer(seed: int, length: int, page_size: int) -> Answer:
    with Engine(model(), page_size=page_size, num_blocks=-(-CONTEXT // page_size), deterministic=True) as engine:
        recorder = Recorder()
        with recorder.listening_to(engine):
            request = engine.submit(prompt_of(seed, length), GREEDY)
            while engine.has_work:
                engine.step()
        return Answer(list(request.completions()[0].token_ids), recorder.rows[0])


def prompt_of(seed: int, length: int) -> list[int]:
    return random_tokens(random.Random(seed), length)


def answer(seed: int, length: int, page_size: int = PAGE) -> Answer:
    return _answer(seed, length, page_size)


def steps(engine: Engine, requests: list[Request], check_every: int = 4) -> None:
    """Until these have finished; the books are checked now and then."""
    for number in range(MAX_STEPS):
        if all(request.is_finished for request in requests):
            return
        engine.step()
        if number % check_every == 0:
            engine.check()
    raise AssertionError(f"not done after {MAX_STEPS} steps")


def assert_nothing_left(engine: Engine) -> None:
    """No block and no slot is held, once the transfers have ended."""
    assert engine.cache.lower is not None
    assert engine.cache.lower.settle(60)
    engine.cache.tick()
    engine.check()
    counts, statistics = block_counts(engine), engine.statistics()
    assert (counts.used, counts.moving) == (0, 0)
    assert (statistics.running, statistics.waiting) == (0, 0)
    for tier in engine.cache.statistics().tiers:
        assert tier.usage.used == 0, f"{tier.name} holds pages of nobody"
    assert not engine.has_work


@contextmanager
def failing_reads(engine: Engine, fails: Callable[[int], str]) -> Iterator[list[int]]:
    """``fails(n)`` says of the n-th part that is read below: "" as it is, "error", or "wrong" bytes. Yields the parts
    that were spoilt."""
    assert engine.cache.lower is not None
    seen, spoilt = [0], []

    def read_parts(original: Callable[..., Any], indices: np.ndarray, start: int, into: np.ndarray) -> Any:
        errors = original(indices, start, into)
        for at in range(len(indices)):
            seen[0] += 1
            how = fails(seen[0])
            if how:
                spoilt.append(seen[0])
                into[at] ^= 0x55
            if how == "error":
                errors[at] = TierError("can't be read")
        return errors

    with ExitStack() as stack:
        for tier in engine.cache.lower.migration.tiers:
            stack.enter_context(wrapped(tier, "read_parts", read_parts))
        yield spoilt
