"""Runs prompts in deterministic mode, alone and in random company, and compares every bit.

In a module of its own because two threads are tried in a process of its own: there they wait passively, without which
two busy cores make each step a hundred times slower.
"""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from kvpager.engine import Engine, Request, Sampling
from kvpager.engine.request import Branch
from kvpager.memory.layout import KVLayout
from tests.engine.engines import assert_idle, drive, force_preemption, wrapped
from tests.tiny_model import random_tokens, threads, tiny_model

NEW = 12
LENGTHS = (3, 20, 63, 64, 65, 100, 128, 130, 150, 200)

Rows = dict[int, bytes]  # known tokens -> the bits of the logits that chose the next one


@dataclass
class Solo:
    """A prompt and what comes of it when it runs alone in a large pool."""

    prompt: list[int]
    sampling: Sampling
    tokens: list[int] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    key_values: Tensor | None = None  # [2, layers, tokens, kv_heads, head_dim]


@dataclass
class Recorder:
    """Keeps the logits of each branch, by how many tokens it knew, and its K and V when it ends."""

    rows: dict[int, Rows] = field(default_factory=dict)
    key_values: dict[int, Tensor] = field(default_factory=dict)

    @contextmanager
    def rows_of(self, engine: Engine) -> Iterator[None]:
        """The logits only."""

        def sample(original: Callable[..., Any], branches: list[Branch], logits: Tensor) -> Any:
            for branch, row in zip(branches, logits, strict=True):
                self.rows.setdefault(branch.key, {})[branch.num_known] = row.numpy().tobytes()
            return original(branches, logits)

        with wrapped(engine._loop, "_sample", sample):
            yield

    @contextmanager
    def listening_to(self, engine: Engine) -> Iterator[None]:
        def finish(original: Callable[..., Any], branch: Branch, *args: Any) -> Any:
            if branch.sequence is not None:
                self.key_values[branch.key] = torch.stack(branch.sequence.read(0, branch.sequence.length))
            return original(branch, *args)

        with self.rows_of(engine), wrapped(engine._queues, "finish", finish):
            yield


def solos(generator: random.Random) -> list[Solo]:
    """Prompts that share beginnings of many lengths; half of them sampled."""
    stems = [random_tokens(generator, 200) for _ in range(2)]
    found = []
    for number, length in enumerate(LENGTHS * 2):
        shared = generator.choice([0, length // 2, max(0, length - 5), length - 1])
        prompt = [*stems[number % 2][:shared], *random_tokens(generator, length - shared)]
        sampling = Sampling(max_tokens=NEW, temperature=number % 3 * 0.7, seed=number)
        found.append(Solo(prompt, sampling))
    return found


def run_alone(solo: Solo) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64, deterministic=True) as engine:
        recorder = Recorder()
        with recorder.listening_to(engine):
            request = engine.submit(solo.prompt, solo.sampling)
            drive(engine)
        solo.tokens = list(request.completions()[0].token_ids)
        solo.rows = recorder.rows[0]
        solo.key_values = recorder.key_values[0]
        assert len(solo.rows) == NEW
        assert solo.key_values.shape[2] == len(solo.prompt) + NEW - 1


@dataclass
class Seen:
    """What the schedules of a test went through, so that it is known to have happened."""

    prefix_tokens: int = 0
    preemptions: int = 0
    cancelled: int = 0
    together: int = 0  # most branches in one step


def run_schedule(seed: int, library: list[Solo], seen: Seen) -> None:
    """A random pool, arrivals, batch mates, warm prefixes, forced preemptions, cancels; compares all with the solos."""
    generator = random.Random(seed)
    preemptions = generator.randrange(5)  # to be forced
    options = {
        "num_blocks": generator.choice([15, 18, 24, 40, 64]),
        "max_batch_tokens": generator.choice([64, 90, 300]),
        "max_running": generator.choice([2, 4, 16]),
        "prefix_cache": generator.random() < 0.8,
    }
    replay = f"replay: run_schedule({seed}, ...) with {options}"
    with Engine(tiny_model(), page_size=16, deterministic=True, **options) as engine:
        recorder = Recorder()
        requests: list[tuple[Request, Solo]] = []
        cancelled: set[int] = set()

        def between(number: int) -> None:
            nonlocal preemptions
            if generator.random() < 0.5 and len(requests) < 5:
                submit()
            if generator.random() < 0.15 and preemptions:
                preemptions -= force_preemption(engine, generator.randrange(-1, 1))
            if generator.random() < 0.03 and requests:
                request, _ = generator.choice(requests)
                if engine.cancel(request.id):
                    cancelled.add(request.id)
            seen.together = max(seen.together, len(engine.branches()))

        def submit() -> None:
            solo = generator.choice(library)
            requests.append((engine.submit(solo.prompt, solo.sampling, priority=generator.choice([0, 0, 1])), solo))

        with recorder.listening_to(engine):
            for _ in range(generator.choice([1, 2, 4])):
                submit()
            drive(engine, between)
        for request, solo in requests:
            (branch,) = request.branches
            rows, done = recorder.rows.get(branch.key, {}), request.completions()[0]
            for known, row in rows.items():
                assert row == solo.rows[known], f"logits after {known} tokens; {replay}"
            if request.id not in cancelled:
                assert list(done.token_ids) == solo.tokens, replay
                assert rows.keys() == solo.rows.keys(), replay
            if branch.key in recorder.key_values:
                stored = recorder.key_values[branch.key]
                assert solo.key_values is not None
                same = _comparable(engine.cache.layout, stored.shape[2], solo.key_values.shape[2])
                stored, alone = stored[:, :, :same].contiguous(), solo.key_values[:, :, :same].contiguous()
                assert torch.equal(stored.view(torch.int32), alone.view(torch.int32)), f"K and V; {replay}"
            seen.prefix_tokens += done.prefix_tokens
            seen.preemptions += done.preemptions
        seen.cancelled += len(cancelled)
        assert_idle(engine)


def _comparable(layout: KVLayout, tokens: int, alone: int) -> int:
    """Of a branch that was cancelled after ``tokens``: in a quantized page, later tokens change the earlier ones."""
    return tokens // layout.page_size * layout.page_size if layout.is_quantized and tokens < alone else tokens


def run_schedules(seeds: range) -> Seen:
    library = solos(random.Random(0))
    for solo in library:
        run_alone(solo)
    seen = Seen()
    for seed in seeds:
        run_schedule(seed, library, seen)
    return seen


def run_forks() -> None:
    """The choices of a request, preempted now and then, against requests of their own."""
    generator = random.Random(1)
    for length in (1, 63, 64, 100):
        prompt = random_tokens(generator, length)
        sampling = Sampling(max_tokens=NEW, temperature=1.0, seed=5, n=3)
        with Engine(tiny_model(), page_size=16, num_blocks=14, deterministic=True) as engine:
            recorder = Recorder()
            with recorder.listening_to(engine):
                request = engine.submit(prompt, sampling)
                drive(engine, lambda number, engine=engine: number in (4, 8, 14) and force_preemption(engine))
        assert sum(done.preemptions for done in request.completions()) >= 3
        for branch, done in zip(request.branches, request.completions(), strict=True):
            solo = Solo(prompt, sampling.child(branch.choice))
            run_alone(solo)
            assert list(done.token_ids) == solo.tokens, f"length={length} choice={branch.choice}"
            rows = recorder.rows[branch.key]
            assert rows == {known: solo.rows[known] for known in rows}, f"length={length} choice={branch.choice}"
            assert len(rows) >= NEW - 1  # the first row of a fork is that of choice 0


def main(num_threads: int, first: int, last: int) -> None:
    """What a test runs in another process; prints what was seen."""
    with threads(num_threads):
        run_forks()
        print(json.dumps(asdict(run_schedules(range(first, last)))))
