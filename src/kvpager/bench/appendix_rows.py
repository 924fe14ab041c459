"""Rows 1 to 4 of appendix C on a real model: the same requests, engine and kernels under three ways to give out memory.

Paged and contiguous allocation run in turn (A B B A), in three forms: prompt-heavy and generation-heavy
(bench/appendix_scenario.py), and where prompts are computed elsewhere (bench/appendix_decode.py); contiguous-exact runs
once, prompt-heavy. Before that, the first requests of the row are answered with all three ways and must give the same
greedy tokens, but where the two best logits are nearer to each other than rounding: a batch of another size may add up
in another order.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from kvpager.bench.appendix_scenario import GENERATION_HEAVY, PAGE_SIZE, ScaledRow, scaled_row
from kvpager.bench.appendix_served import Served, serve
from kvpager.bench.interleaved import Ratio, measure_in_turn
from kvpager.bench.report import Result
from kvpager.bench.workloads import Ask
from kvpager.engine import Completion, Engine, Sampling
from kvpager.errors import InvariantError

PAGED, CONTIGUOUS, EXACT = REGIMES = ("paged", "contiguous", "contiguous-exact")
TARGETS = {1: 4.0, 2: 4.0, 3: 4.0, 4: 5.0}
MORE_CONTEXTS = 4  # of memory, to show what more memory changes
_TIE = 1e-3  # of log probability, between the two best tokens
_CHECKED, _CHECKED_TOKENS = 4, 16


@dataclass(frozen=True, slots=True)
class Form:
    """What is asked for. ``name``: in the figures, empty for the one that targets are for."""

    name: str = ""
    answer_share: float | None = None
    prompts_elsewhere: bool = False


PROMPTS, GENERATION, DECODE = Form(), Form("generation_", GENERATION_HEAVY), Form("decode_", prompts_elsewhere=True)


@dataclass(frozen=True, slots=True)
class RowScale:
    """``context`` of rows 1 to 4, and of row 5. ``requests`` of a run; ``turns``: how often each regime runs."""

    context: int
    row5_context: int
    requests: int
    turns: int


QUICK = RowScale(context=512, row5_context=512, requests=17, turns=2)
FULL = RowScale(context=2048, row5_context=1024, requests=24, turns=2)


def measure(model: Any, scale: RowScale) -> list[Result]:
    """``model``: SmolLM2, loaded. Raises InvariantError where the regimes disagree."""
    results = []
    for number, target in TARGETS.items():
        row = _Row(model, scaled_row(number, scale.context), scale)
        row.check()
        results += row.measured(target)
    more = _Row(model, scaled_row(1, scale.context, MORE_CONTEXTS), scale)
    return [*results, more.ratio(DECODE).result(f"appendix_c_row1_decode_vs_contiguous/{MORE_CONTEXTS}_contexts")]


class _Row:
    def __init__(self, model: Any, row: ScaledRow, scale: RowScale) -> None:
        self._model, self._row, self._turns = model, row, scale.turns
        self._count = max(scale.requests, row.at_once)
        self._name = f"appendix_c_row{row.number}"
        self._served: dict[tuple[str, Form], Served] = {}  # the last run by regime and form

    def check(self) -> None:
        compare(*(self._first_answers(regime) for regime in REGIMES))

    def measured(self, target: float) -> list[Result]:
        ratios = [self.ratio(form) for form in (PROMPTS, GENERATION, DECODE)]
        over_exact = self._run(EXACT, PROMPTS) / self._served[PAGED, PROMPTS].seconds
        return [
            ratios[0].result(f"{self._name}_vs_contiguous", at_least=target),
            Result(f"{self._name}_vs_contiguous_exact", over_exact, "ratio"),
            ratios[1].result(f"{self._name}_generation_vs_contiguous"),
            ratios[2].result(f"{self._name}_decode_vs_contiguous"),
            *self._rates(),
            *self._memory(),
        ]

    def ratio(self, form: Form) -> Ratio:
        """Tokens a second of paged over contiguous allocation."""
        measures = [partial(self._run, regime, form) for regime in (PAGED, CONTIGUOUS)]
        return measure_in_turn([*measures], budget=0.0, least=self._turns).ratio(over=1, under=0)

    def _run(self, regime: str, form: Form) -> float:
        with self._open(regime) as engine:
            served = serve(engine, self._asks(form), prompts_elsewhere=form.prompts_elsewhere)
        self._served[regime, form] = served
        return served.seconds

    def _asks(self, form: Form) -> tuple[Ask, ...]:
        return self._row.asks(self._count, self._model.config.vocab_size, form.answer_share)

    def _open(self, regime: str) -> Engine:
        """Nothing but memory management differs."""
        return Engine(
            self._model,
            num_blocks=self._row.num_blocks(),
            page_size=PAGE_SIZE,
            max_context=self._row.context,
            max_running=self._row.at_once,
            allocation=regime,
        )

    def _first_answers(self, regime: str) -> list[Completion]:
        asks = self._asks(PROMPTS)[:_CHECKED]
        sampling = [
            Sampling(max_tokens=min(ask.max_tokens, _CHECKED_TOKENS), logprobs=2, ignore_eos=True) for ask in asks
        ]
        with self._open(regime) as engine:
            answers = engine.generate([ask.prompt for ask in asks], sampling)
            return sorted(answers, key=lambda answer: answer.index)

    def _rates(self) -> list[Result]:
        found = []
        for (regime, form), served in self._served.items():
            rate = served.tokens / served.seconds
            found.append(Result(f"{self._name}_{form.name}rate/{regime}", rate, "tokens/s"))
        for form in (PROMPTS, GENERATION):
            paged, contiguous = (self._served[regime, form].outputs for regime in (PAGED, CONTIGUOUS))
            equal = sum(a == b for a, b in zip(paged, contiguous, strict=True))
            found.append(Result(f"{self._name}_{form.name}equal_answers", equal / self._count, "share"))
        return found

    def _memory(self) -> list[Result]:
        found = []
        for regime in REGIMES:
            served = self._served[regime, PROMPTS]
            use = served.use
            for part in ("used", "future", "wasted", "stranded", "fragmented"):
                found.append(Result(f"{self._name}_{part}_share/{regime}", getattr(use, part) / use.pool, "share"))
            found += [
                Result(f"{self._name}_utilisation/{regime}", use.used / use.reserved, "share"),
                Result(f"{self._name}_running/{regime}", use.mean_running, "requests"),
                Result(f"{self._name}_most_running/{regime}", float(use.most_running), "requests"),
                Result(f"{self._name}_refused/{regime}", float(served.refused), "requests"),
                Result(f"{self._name}_preemptions/{regime}", float(served.preemptions), "requests"),
            ]
        running = [self._served[regime, PROMPTS].use.mean_running for regime in (PAGED, CONTIGUOUS)]
        return [Result(f"concurrency_vs_contiguous/row{self._row.number}", running[0] / running[1], "ratio"), *found]


def compare(*by_regime: list[Completion]) -> None:
    """Raises InvariantError unless all regimes gave the same tokens, up to the first choice that was a tie."""
    for first, second in pairwise(by_regime):
        for one, other in zip(first, second, strict=True):
            for at, (a, b) in enumerate(zip(one.token_ids, other.token_ids, strict=True)):
                if a != b:
                    best, next_best = sorted((each.logprob for each in one.logprobs[at].top), reverse=True)[:2]
                    if best - next_best > _TIE:
                        raise InvariantError(f"request {one.index} has other tokens from {at} on; nothing was timed")
                    break
