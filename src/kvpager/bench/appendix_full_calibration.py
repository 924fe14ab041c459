"""How far the simulated server is from the real one: costs fitted to real steps here, rates held against other runs.

    fitted    steps of batches of some sizes and contexts: what each computed, and how long it took
    held out  whole workloads that were not among them: lengths of a trace, with room for all, with little room so that
              requests are stopped, and coming one after the other. The simulator is given their lengths and limits, and
              the fitted costs; nothing else is adjusted.

The engine's prefix cache is off, since prompts are random. Each held-out workload runs several times; its rate is the
median.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from kvpager.bench.appendix_full_loads import AppendixRow, requests_of
from kvpager.bench.report import SEED, Result
from kvpager.cache.sequence import Sequence
from kvpager.engine import Engine, Sampling
from kvpager.errors import InvariantError
from kvpager.simulator.service_cost import CostModel, Fit, StepWork, fit
from kvpager.simulator.service_memory import make_memory
from kvpager.simulator.service_simulation import ServerLimits, ServiceRequest, ServiceResult, simulate

Clock = Callable[[], float]

_PAGE_SIZE = 16
_BATCH_TOKENS = 256
_DECODE_STEPS = 10


@dataclass(frozen=True, slots=True)
class CalibrationScale:
    """``batches``: (requests, prompt tokens) of the fitted steps. ``requests`` of each held-out workload, up to
    ``context`` tokens long, ``repeats`` times."""

    batches: tuple[tuple[int, int], ...]
    requests: int
    context: int
    repeats: int


FULL = CalibrationScale(((1, 64), (1, 1024), (4, 256), (8, 1024), (16, 64), (24, 384), (48, 96)), 32, 2048, 2)
QUICK = CalibrationScale(((1, 32), (1, 512), (4, 128), (8, 256), (24, 32)), 24, 1024, 1)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Rates of one workload, tokens a second."""

    name: str
    real: float
    simulated: float

    @property
    def error(self) -> float:
        return abs(self.simulated / self.real - 1)


@dataclass(frozen=True, slots=True)
class Calibration:
    """``steps`` that were fitted."""

    fit: Fit
    steps: int
    held_out: tuple[HeldOut, ...]

    def results(self) -> Iterator[Result]:
        for each in self.held_out:
            yield Result(f"simulation_error/{each.name}", each.error, "share")
            yield Result(f"simulation_real/{each.name}", each.real, "tokens/s")
            yield Result(f"simulation_simulated/{each.name}", each.simulated, "tokens/s")
        yield Result("simulation_error/fitted_steps", self.fit.error, "share")
        for name, seconds in _coefficients(self.fit.costs).items():
            yield Result(f"simulation_cost/{name}", seconds * 1e6, "us")


def calibrate(model: PreTrainedModel, scale: CalibrationScale, clock: Clock = time.perf_counter) -> Calibration:
    """``clock``: ``time.process_time`` where torch and the kernels have one thread each, and others use the machine."""
    works, seconds = _fitted_steps(model, scale, clock)
    found = fit(works, seconds)
    return Calibration(found, len(works), tuple(_held_out(model, scale, found.costs, clock)))


def _coefficients(costs: CostModel) -> dict[str, float]:
    return {name: getattr(costs, name) for name in ("fixed", "row", "weights", "token", "kv", "pair")}


# -- fitted steps --------------------------------------------------------------------------------------------------


def _fitted_steps(model: PreTrainedModel, scale: CalibrationScale, clock: Clock) -> tuple[list[StepWork], list[float]]:
    works: list[StepWork] = []
    seconds: list[float] = []
    tokens = max(count * (prompt + 2 * _DECODE_STEPS + _PAGE_SIZE) for count, prompt in scale.batches)
    with _engine(model, tokens + 64 * _PAGE_SIZE) as engine, _watched(engine) as last:
        draw = Random(SEED)
        for count, prompt in ((2, 8), *scale.batches):  # the first warms up
            _submit(engine, [ServiceRequest(prompt, _DECODE_STEPS)] * count, draw)
            while engine.has_work:
                last.clear()
                begin = clock()
                engine.step()
                took = clock() - begin
                if len(last) == 1 and (count, prompt) != (2, 8):
                    works.append(last[0])
                    seconds.append(took)
    return works, seconds


@contextmanager
def _watched(engine: Engine) -> Iterator[list[StepWork]]:
    """A list that every step of the cache adds its work to."""
    found: list[StepWork] = []
    original: Callable[..., Any] = engine.cache.step_over

    def step_over(sequences: list[Sequence], counts: np.ndarray) -> Any:
        lengths = np.array([seq.length for seq in sequences])
        found.append(_work_of(lengths, np.asarray(counts)))
        return original(sequences, counts)

    setattr(engine.cache, "step_over", step_over)  # noqa: B010  mypy refuses to assign to a method
    try:
        yield found
    finally:
        del engine.cache.step_over  # the method of the class is there again


def _work_of(lengths: np.ndarray, counts: np.ndarray) -> StepWork:
    """As the simulator counts it: a row with one new token decodes."""
    decodes = counts == 1
    pairs = np.where(decodes, 0, counts * (lengths + (counts + 1) / 2))
    return StepWork(
        rows=float(len(counts)),
        tokens=float(counts.sum()),
        kv_tokens=float((lengths + 1)[decodes].sum()),
        pairs=float(pairs.sum()),
    )


# -- held-out runs -------------------------------------------------------------------------------------------------


def _held_out(model: PreTrainedModel, scale: CalibrationScale, costs: CostModel, clock: Clock) -> Iterator[HeldOut]:
    requests = requests_of(AppendixRow(0, scale.requests, scale.context, None, 0.0))
    total = sum(request.final for request in requests)
    longest = max(request.final for request in requests)
    gap = 0.7 * _simulated(requests, total * 2, costs).seconds / len(requests)
    coming = [ServiceRequest(one.prompt, one.output, at * gap) for at, one in enumerate(requests)]
    for name, load, capacity in (
        ("room_for_all", requests, total + 4 * _PAGE_SIZE * len(requests)),
        ("little_room", requests, max(total // 4, longest + 8 * _PAGE_SIZE)),
        ("coming", coming, total + 4 * _PAGE_SIZE * len(requests)),
    ):
        real = statistics.median(_real(model, load, capacity, clock) for _ in range(scale.repeats))
        yield HeldOut(name, real, _simulated(load, capacity, costs).tokens_per_second)


def _simulated(requests: list[ServiceRequest], capacity: int, costs: CostModel) -> ServiceResult:
    memory = make_memory("paged", capacity, page_size=_PAGE_SIZE, longest=capacity)
    return simulate(requests, memory, costs, ServerLimits(len(requests), _BATCH_TOKENS))


def _real(model: PreTrainedModel, requests: list[ServiceRequest], capacity: int, clock: Clock) -> float:
    """Nobody waits for a request that is still to come: where nothing is left to do, its time has come."""
    draw = Random(SEED)
    with _engine(model, capacity, len(requests)) as engine:
        _submit(engine, [ServiceRequest(8, 4)] * 2, draw)
        while engine.has_work:
            engine.step()
        waiting = deque((request, _prompt(engine, request, draw)) for request in requests)
        begin = clock()
        while waiting or engine.has_work:
            if not engine.has_work:
                begin = min(begin, clock() - waiting[0][0].at)
            while waiting and clock() - begin >= waiting[0][0].at:
                request, prompt = waiting.popleft()
                engine.submit(prompt, _sampling(request))
            engine.step()
        seconds = clock() - begin
        made = engine.statistics().generated_tokens - 2 * 4
    if made != sum(request.output for request in requests):
        raise InvariantError(f"the engine gave {made} tokens; its rate says nothing")
    return made / seconds


def _engine(model: PreTrainedModel, tokens: int, max_running: int = 256) -> Engine:
    return Engine(
        model,
        num_blocks=-(-tokens // _PAGE_SIZE),
        page_size=_PAGE_SIZE,
        max_batch_tokens=_BATCH_TOKENS,
        max_running=max_running,
        prefix_cache=False,
    )


def _submit(engine: Engine, requests: list[ServiceRequest], draw: Random) -> None:
    for request in requests:
        engine.submit(_prompt(engine, request, draw), _sampling(request))


def _prompt(engine: Engine, request: ServiceRequest, draw: Random) -> list[int]:
    return [draw.randrange(engine.vocab_size) for _ in range(request.prompt)]


def _sampling(request: ServiceRequest) -> Sampling:
    return Sampling(max_tokens=request.output, ignore_eos=True)
