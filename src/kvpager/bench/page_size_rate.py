"""Tokens a second of SmolLM2 by page size: decode steps behind prompts whose pages were written by hand.

Prompts hold random K and V, which are found as any cached content; what is measured is decoding behind them. An engine
runs for one page size at a time, since a model can be in one engine only; the page sizes are taken in turn.
"""

import time
from functools import partial
from random import Random

from transformers import PreTrainedModel

from kvpager.bench.interleaved import Measure, measure_in_turn
from kvpager.bench.million_served import write_by_hand
from kvpager.bench.page_size_models import PAGE_SIZES
from kvpager.bench.random_pages import RandomPages
from kvpager.bench.report import SEED, Result
from kvpager.engine import Engine, Sampling
from kvpager.errors import InvariantError, ModelError
from kvpager.models.load import load_model

_LOADS = ((16, 512), (8, 4096))  # sequences, context
_QUICK_SIZES = (16, 128)


def measure(quick: bool) -> list[Result]:
    """Nothing where the model was not fetched."""
    try:
        model = load_model("smollm2", dtype="bfloat16", device="cpu").model
    except ModelError:
        return []
    results = []
    for sequences, context in _LOADS[:1] if quick else _LOADS:
        sizes, steps, rounds = (_QUICK_SIZES, 2, 1) if quick else (PAGE_SIZES, 6, 2)
        calls: list[Measure] = [partial(seconds_a_step, model, size, sequences, context, steps) for size in sizes]
        times = measure_in_turn(calls, 0.0, rounds)
        for at, size in enumerate(sizes):
            where = f"135m_ctx={context}_page={size}"
            results.append(Result(f"page_size_rate/{where}", sequences / times.median(at), "tokens/s"))
    return results


def seconds_a_step(model: PreTrainedModel, page_size: int, sequences: int, context: int, steps: int) -> float:
    """Of ``sequences`` that decode behind ``context`` tokens each."""
    draw = Random(SEED)
    blocks = sequences * (-(-(context + steps) // page_size) + 2)
    with Engine(model, num_blocks=blocks, page_size=page_size, max_batch_tokens=512, partial_hits=False) as engine:
        pages = RandomPages(engine.layout)
        for number in range(sequences):
            prompt = [draw.randrange(engine.vocab_size) for _ in range(context + 1)]
            write_by_hand(engine, prompt, context // page_size * page_size, pages, number * context)
            engine.submit(prompt, Sampling(max_tokens=steps + 4, ignore_eos=True))
        engine.step()
        engine.step()
        if engine.statistics().running != sequences or engine.statistics().prefix_tokens < sequences * (context - 256):
            raise InvariantError("prompts were not found; decoding was not timed")
        begin = time.perf_counter()
        for _ in range(steps):
            engine.step()
        return (time.perf_counter() - begin) / steps
