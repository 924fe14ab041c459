"""What writing every full page to the disk at once costs the sequences that run: tokens a second, with and without.

Both decode the same prompts together, in turn, and must give the same tokens. Only steps in which all sequences decode
are timed; the pages of the prompts are on their way down when they begin. A step does the same in each round, so of
each step the median over the rounds is taken, and these are added up: other work on the machine hits a few steps of a
round hard, while what a page that goes down costs, it costs in every round.
"""

import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from kvpager import DiskTier
from kvpager.bench.interleaved import measure_in_turn
from kvpager.bench.report import SEED, Result, seconds_of
from kvpager.bench.tiers_scale import TierScale
from kvpager.bench.tiers_waits import Waits, waits_of_this_thread
from kvpager.engine import Engine, Sampling
from kvpager.errors import InvariantError

AT_MOST = 0.03
_PROMPT_TOKENS = 64


def measure(scale: TierScale, folder: Path, model: Any, waits: Waits) -> list[Result]:
    """``model``: SmolLM2, loaded. ``waits`` learns what the bookkeeping thread waited for."""
    results = []
    for count in scale.decode_sequences:
        suffix = "" if count == max(scale.decode_sequences) else f"/{count}"
        results += _cost(count, suffix, scale, folder, model, waits)
    return results


def _cost(count: int, suffix: str, scale: TierScale, folder: Path, model: Any, waits: Waits) -> list[Result]:
    runs = _Runs(count, scale, folder / "decode", model, waits)
    runs.plain()
    runs.forget()
    times = measure_in_turn([runs.plain, runs.written_through], scale.seconds, scale.rounds)
    share = times.ratio(0, 1)  # of the tokens a second that are left, run by run
    plain, written = (np.median(np.array(steps), axis=0).sum() for steps in (runs.plain_steps, runs.written_steps))
    tokens = count * len(runs.plain_steps[0])
    return [
        Result(
            f"write_through_decode_cost{suffix}",
            1 - float(plain / written),
            "share",
            at_most=AT_MOST,
            spread=(1 - share.high, 1 - share.low),
        ),
        Result(f"decode_rate{suffix}", float(tokens / plain), "tokens/s"),
        Result(f"decode_rate_written_through{suffix}", float(tokens / written), "tokens/s"),
    ]


class _Runs:
    """Seconds of each step, run by run."""

    def __init__(self, count: int, scale: TierScale, folder: Path, model: Any, waits: Waits) -> None:
        self._count, self._tokens, self._scale = count, scale.decode_tokens, scale
        self._folder, self._model, self._waits = folder, model, waits
        self._outputs: list[list[int]] = []
        self.plain_steps: list[list[float]] = []
        self.written_steps: list[list[float]] = []

    def forget(self) -> None:
        self.plain_steps, self.written_steps = [], []

    def plain(self) -> float:
        with Engine(self._model, capacity=self._scale.pool) as engine:
            self.plain_steps.append(self._decode(engine))
        return sum(self.plain_steps[-1])

    def written_through(self) -> float:
        tier = DiskTier(self._folder, self._scale.tier)
        try:
            with Engine(self._model, capacity=self._scale.pool, tiers=(tier,), write_back="through") as engine:
                with waits_of_this_thread(engine.cache.lower, self._waits):
                    self.written_steps.append(self._decode(engine))
                engine.cache.lower.settle(60.0)  # type: ignore[union-attr]
                _check_written(engine, self._count * ((_PROMPT_TOKENS + self._tokens) // engine.layout.page_size - 1))
                return sum(self.written_steps[-1])
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _decode(self, engine: Engine) -> list[float]:
        draw = Random(SEED)
        requests = [
            engine.submit(
                [draw.randrange(engine.vocab_size) for _ in range(_PROMPT_TOKENS)],
                Sampling(max_tokens=self._tokens, ignore_eos=True),
            )
            for _ in range(self._count)
        ]
        while any(not request.branches[0].output for request in requests):
            engine.step()
        steps = []
        while all(not request.is_finished for request in requests):
            steps.append(seconds_of(engine.step))
        while engine.has_work:
            engine.step()
        outputs = [list(request.branches[0].output) for request in requests]
        if outputs != (self._outputs or outputs):
            raise InvariantError("decoding while pages are written gave other tokens; it was not timed")
        self._outputs = outputs
        return steps


def _check_written(engine: Engine, pages: int) -> None:
    [tier] = engine.cache.statistics().tiers
    if tier.stored.pages < pages:
        raise InvariantError(f"{tier.stored.pages} of {pages} pages were written; it was not timed ({tier.state})")
