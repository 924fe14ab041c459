"""What a decode step of the real model spends on neither matrix products nor attention, as a share of its time.

    step     = scheduling, bookkeeping, the model, sampling, text: all of Engine.step()
    products = every matrix product of the layers, and the head
    attention = the run of the attention plan in each layer, the KV write included; making the plan is overhead
    share    = (step - products - attention) / step

Products and attention are timed where they are called, so that Python's way to them is overhead and what torch does
inside a call is not. What the timers cost themselves is measured, and taken from the step.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from torch.nn import functional

from kvpager.attention.backend import AttentionBackend, Plan
from kvpager.bench.report import SEED, Result
from kvpager.cache.step import StepBatch
from kvpager.engine import Engine, Sampling
from kvpager.errors import ModelError
from kvpager.integrations import fused_layers
from kvpager.memory.arena import Arena

SEQUENCES = 32
PROMPT_TOKENS = 128
TARGET = 0.15


def decode_step_overhead(quick: bool = False) -> list[Result]:
    """Results named ``decode_step_...``; none where the model was not fetched. Torch's number of threads is kept."""
    steps = 20 if quick else 60
    try:
        with Engine("smollm2", dtype="bfloat16", capacity="1GiB", max_batch_tokens=2048) as engine:
            parts = measure(engine, steps)
    except ModelError:
        return []
    return [
        Result("decode_step_overhead_share", parts.overhead / parts.step, "share", TARGET),
        Result("decode_step", parts.step * 1e3, "ms"),
        Result("decode_step_products", parts.products * 1e3, "ms"),
        Result("decode_step_attention", parts.attention * 1e3, "ms"),
    ]


@dataclass(frozen=True, slots=True)
class StepParts:
    """Seconds of one step, medians over steps."""

    step: float
    products: float
    attention: float
    overhead: float


def measure(engine: Engine, steps: int) -> StepParts:
    """Decodes SEQUENCES random prompts together for ``steps`` steps."""
    draw = Random(SEED)
    for _ in range(SEQUENCES):
        prompt = [draw.randrange(engine.vocab_size) for _ in range(PROMPT_TOKENS)]
        engine.submit(prompt, Sampling(max_tokens=steps + SEQUENCES, ignore_eos=True))
    while engine.num_waiting:
        engine.step()
    with _timed(engine) as (products, attention):
        samples = []
        for number in range(5 + steps):
            products.reset()
            attention.reset()
            begin = time.perf_counter()
            engine.step()
            step = time.perf_counter() - begin - (products.calls + attention.calls) * _timer_cost()
            if number >= 5:
                samples.append((step, products.seconds, attention.seconds, step - products.seconds - attention.seconds))
    return StepParts(*map(statistics.median, zip(*samples, strict=True)))


class _Timer:
    """Adds up the time spent in the functions it wraps."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seconds = 0.0
        self.calls = 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - begin
                self.calls += 1

        return timed


class _TimedBackend:
    """``backend`` with its plans' runs timed."""

    def __init__(self, backend: AttentionBackend, timer: _Timer) -> None:
        self.name = backend.name
        self._backend = backend
        self._timer = timer

    def plan(self, batch: StepBatch, arena: Arena) -> Plan:
        return _TimedPlan(self._timer.wrap(self._backend.plan(batch, arena).run))


@dataclass(slots=True)
class _TimedPlan:
    run: Callable[..., Any]


@contextmanager
def _timed(engine: Engine) -> Iterator[tuple[_Timer, _Timer]]:
    products, attention = _Timer(), _Timer()
    backend = engine.runner.backend
    with ExitStack() as restored:
        for owner, name in ((functional, "linear"), (fused_layers, "matrix_product")):
            original = getattr(owner, name)
            restored.callback(setattr, owner, name, original)
            setattr(owner, name, products.wrap(original))
        restored.callback(setattr, engine.runner, "backend", backend)
        engine.runner.backend = _TimedBackend(backend, attention)
        yield products, attention


def _timer_cost() -> float:
    """Seconds that a timer adds to a step with each call, beside what it counts."""
    timer, rounds = _Timer(), 200
    wrapped = timer.wrap(_nothing)
    begin = time.perf_counter()
    for _ in range(rounds):
        wrapped(None, None, None)
    middle = time.perf_counter()
    for _ in range(rounds):
        _nothing(None, None, None)
    plain = time.perf_counter() - middle
    return max(0.0, middle - begin - timer.seconds - plain) / rounds


def _nothing(*_: Any) -> None:
    pass
