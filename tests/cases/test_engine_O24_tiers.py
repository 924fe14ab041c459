"""Open case O-24 over the tiers: the same tokens whether a page is computed, found, or comes back from below.

Pools are so small that everything moves. In deterministic mode logits, K and V are compared bit by bit. Transfers run
when they are collected, so a test does not depend on how fast threads are; ``test_threads`` is the same with threads.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from kvpager.config import DiskTier, HostTier, RemoteTier
from kvpager.engine import Engine, Request, Sampling
from kvpager.types import TierKind
from tests.engine.determinism import Recorder, Rows
from tests.engine.engines import ask, first_choices, force_preemption
from tests.engine.tiers import AlwaysLoad, StepMover, assert_still, checked_pass, empty_device
from tests.tiny_model import ref, sharp_prompt, tiny_model

NEW = 20


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = random.Random(240)
    return [sharp_prompt(generator, generator.randint(40, 150), NEW) for _ in range(5)]


@dataclass(frozen=True)
class Way:
    """``tiers`` below a pool of ``num_blocks``; ``moves``: before a run, what is cached goes down. ``preempt_every``
    so many passes a branch is stopped and its pages go down. ``hits``: where some must have come from."""

    tiers: tuple[str, ...] = ()
    num_blocks: int = 300
    warm: bool = True
    moves: bool = True
    preempt_every: int | None = None
    hits: tuple[TierKind, ...] = ()
    options: dict[str, object] = field(default_factory=dict)


HOST, DISK, REMOTE, DEVICE = TierKind.HOST, TierKind.DISK, TierKind.REMOTE, TierKind.DEVICE
WAYS = {
    "cold": Way(warm=False, moves=False),
    "device hit": Way(moves=False, hits=(DEVICE,)),
    "host hit, through": Way(("host",), hits=(HOST,)),
    "host hit, back": Way(("host",), hits=(HOST,), options={"write_back": "back"}),
    "host hit, selective": Way(("host",), hits=(HOST,), options={"write_back": "selective"}),
    "disk hit": Way(("disk",), hits=(DISK,)),
    "remote hit": Way(("remote",), hits=(REMOTE,)),
    "small host over disk": Way(("small host", "disk"), hits=(DISK,)),
    "preempted, through": Way(("host",), warm=False, moves=False, preempt_every=4),
    "preempted, back": Way(("small host", "disk"), preempt_every=4, options={"write_back": "back"}),
    "tiny pool": Way(("host",), num_blocks=14, moves=False, hits=(HOST,)),
    "tiny pool, back": Way(("host",), num_blocks=14, moves=False, hits=(HOST,), options={"write_back": "back"}),
    "tiny pool, reclaim ahead": Way(("host",), 20, moves=False, hits=(HOST,), options={"eviction_threshold": 0.2}),
}


def open_engine(path: Way, folder: Path, deterministic: bool, mover: bool = True) -> Engine:
    tiers = {
        "host": HostTier(pages=500),
        "small host": HostTier(pages=8),
        "disk": DiskTier(folder, "64 MiB"),
        "remote": RemoteTier("memory:///"),
    }
    engine = Engine(
        tiny_model(),
        page_size=16,
        num_blocks=path.num_blocks,
        max_batch_tokens=64,
        deterministic=deterministic,
        tiers=tuple(tiers[name] for name in path.tiers),
        **path.options,
    )
    if engine.cache.lower is not None:
        engine.loading.model = AlwaysLoad(engine.layout.page_size, engine.layout.block_stride)
        if mover:
            engine.cache.lower.migration.moves.mover = StepMover()
    return engine


def run(engine: Engine, prompts: list[list[int]], path: Way, between: Callable[[int], None]) -> list[Request]:
    requests = ask(engine, prompts, Sampling(max_tokens=NEW))
    number = 0
    while engine.has_work:
        between(number)
        checked_pass(engine)
        number += 1
        assert number < 3000
    return requests


def run_path(
    prompts: list[list[int]], path: Way, folder: Path, deterministic: bool, mover: bool = True
) -> list[tuple[Rows, torch.Tensor]]:
    """The bits of each prompt's logits, K and V. Checks the tokens and where the hits came from."""

    with open_engine(path, folder, deterministic, mover) as engine:

        def between(number: int) -> None:
            if path.preempt_every and number % path.preempt_every == path.preempt_every - 1 and number < 60:
                force_preemption(engine, number % 2 - 1)
                empty_device(engine)

        if path.warm:
            run(engine, prompts, path, lambda _: None)
        if path.moves:
            empty_device(engine)
        recorder = Recorder()
        with recorder.listening_to(engine):
            requests = run(engine, prompts, path, between)
        dones, statistics = first_choices(requests), engine.statistics()
        assert [list(done.token_ids) for done in dones] == [ref(prompt, NEW) for prompt in prompts]
        for tier in path.hits:
            assert sum(done.prefix_by_tier.get(tier, 0) for done in dones) > 0
        assert all(sum(done.prefix_by_tier.values()) == done.prefix_tokens for done in dones)
        if path.preempt_every:
            assert statistics.preemptions >= 3
            assert statistics.resumptions.tokens.keys() & {HOST, DISK}
        if engine.cache.lower is not None:
            assert_still(engine)
        return [
            (recorder.rows[request.branches[0].key], recorder.key_values[request.branches[0].key])
            for request in requests
        ]


@pytest.mark.parametrize("name", WAYS)
def test_the_tokens_are_those_of_plain_generation(prompts: list[list[int]], name: str, tmp_path: Path) -> None:
    run_path(prompts, WAYS[name], tmp_path, deterministic=False)


def test_in_deterministic_mode_logits_keys_and_values_are_bit_equal_on_every_path(
    prompts: list[list[int]], tmp_path: Path
) -> None:
    some = prompts[:3]
    alone = run_path(some, WAYS["cold"], tmp_path, deterministic=True)
    for name in ("host hit, through", "small host over disk", "preempted, back", "tiny pool, back"):
        found = run_path(some, WAYS[name], tmp_path / name.replace(" ", "-"), deterministic=True)
        for at, (here, there) in enumerate(zip(found, alone, strict=True)):
            where = f"{name}, prompt {at}"
            assert len(here[0]) == NEW, where
            assert here[0] == there[0], where
            assert torch.equal(here[1].view(torch.int32), there[1].view(torch.int32)), where


@pytest.mark.parametrize("name", ["small host over disk", "preempted, back"])
def test_threads(prompts: list[list[int]], name: str, tmp_path: Path) -> None:
    run_path(prompts, WAYS[name], tmp_path, deterministic=False, mover=False)
