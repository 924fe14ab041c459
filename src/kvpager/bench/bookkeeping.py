"""What the bookkeeping costs: decode steps, new pages, look-ups, frees, and that none of it grows with the context.

Runs without torch; the last figures need the real model and are left out where it was not fetched. The layout is tiny,
since no byte of KV is touched. Targets are a tenth of what vLLM 0.32's KVCacheManager was measured to take for the same
work (16-token blocks; append of one token 6.2 us, look-up with hashing 444 us and free 23.9 us per 2,048 tokens); the
side-by-side run is another benchmark.
"""

import statistics
import time

import numpy as np

from kvpager.assemble import open_cache
from kvpager.bench.report import Result, report, seconds_per_call
from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.sequence import Sequence
from kvpager.errors import InvariantError
from kvpager.memory.layout import KVLayout

PAGE = 16
RUNNING = 1024
LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="bfloat16", page_size=PAGE)


def run(quick: bool = False) -> dict[str, object]:
    contexts = [256, 4096] if quick else [256, 4096, 16384]
    results: list[Result] = []
    plain = []
    for context in contexts:
        decode = _decode_steps(context, steps=4 * PAGE)
        plain.append(decode.plain)
        suffix = f"/context={context}"
        results.append(Result("decode_step_1024" + suffix, decode.per_sequence * RUNNING * 1e6, "us"))
        results.append(Result("decode_per_sequence" + suffix, decode.per_sequence * 1e6, "us", 0.62))
        results.append(Result("new_page" + suffix, decode.per_new_page * 1e6, "us"))
    # Of the steps without new pages: what a new page costs depends on how many pages the index holds in all.
    results.append(Result(f"decode_growth_{contexts[0]}_to_{contexts[-1]}", plain[-1] / plain[0], "ratio", 1.25))
    results.append(Result("prefix_lookup_4096", _lookup(4096) * 1e6, "us", 88.8))
    free = _free(131072)
    results.append(Result("free_131072", free * 1e6, "us", 153.0))
    results.append(Result("table_bytes_1048576", float(_table_bytes(1 << 20)), "bytes", 4e6))
    results.extend(_engine_share(16 if quick else 64))
    return report(
        "bookkeeping",
        results,
        checks=["no step loses a token, look-ups find what is there, a free gives every page back"],
    )


class _Decode:
    """Seconds: ``plain`` per sequence in a step without new pages; with its share of new pages; per new page."""

    def __init__(self, plain: float, with_pages: float) -> None:
        self.plain = plain / RUNNING
        self.per_sequence = (plain * (PAGE - 1) + with_pages) / PAGE / RUNNING
        self.per_new_page = (with_pages - plain) / RUNNING


def _decode_steps(context: int, steps: int) -> _Decode:
    """Appends, opens and closes decode steps of RUNNING sequences whose pages are published as they fill.

    All sequences cross a page border in the same step, so that steps with and without new pages can be told apart.
    """
    blocks = RUNNING * ((context + steps) // PAGE + 2)
    with open_cache(LAYOUT, num_blocks=blocks) as cache:
        sequences = [_filled(cache, context, salt) for salt in range(RUNNING)]
        ones = np.ones(RUNNING, np.int64)
        plain: list[float] = []
        crossing: list[float] = []
        for token in range(steps):
            begin = time.perf_counter()
            for seq in sequences:
                seq.append(token)
            with cache.step_over(sequences, ones):
                pass
            (crossing if (context + token) % PAGE in (0, PAGE - 1) else plain).append(time.perf_counter() - begin)
        if any(seq.length != context + steps for seq in sequences):
            raise InvariantError("a decode step lost a token")
        # A page is mapped in one step and published in another: together they are its cost.
        page = statistics.median(crossing[::2]) + statistics.median(crossing[1::2]) - statistics.median(plain)
        return _Decode(statistics.median(plain), page)


def _filled(cache: PagedCache, tokens: int, salt: int) -> Sequence:
    seq = cache.sequence([salt, *range(1, tokens)])
    with cache.step({seq: tokens}):
        pass
    return seq


def _lookup(tokens: int) -> float:
    with open_cache(LAYOUT, num_blocks=2 * tokens // PAGE) as cache:
        seq = _filled(cache, tokens, 0)
        prompt = seq.tokens
        assert prompt is not None
        prompt.append(1)
        if cache.lookup(prompt).num_tokens != tokens:
            raise InvariantError("the look-up missed content that is there")
        return seconds_per_call(lambda: cache.lookup(prompt), 200)


def _free(tokens: int) -> float:
    times = []
    for _ in range(5):
        with open_cache(LAYOUT, num_blocks=tokens // PAGE) as cache:
            seq = _filled(cache, tokens, 0)
            begin = time.perf_counter()
            seq.free()
            times.append(time.perf_counter() - begin)
            counts = cache.pool.counts()
            if counts.used or counts.cached != tokens // PAGE:
                raise InvariantError("free did not give every page back")
    return statistics.median(times)


def _table_bytes(tokens: int) -> int:
    with open_cache(LAYOUT, num_blocks=tokens // PAGE) as cache:
        seq = cache.sequence()
        with cache.step({seq: tokens}):
            pass
        return cache.statistics().table_bytes


def _engine_share(tokens: int) -> list[Result]:
    """Share of a step that scheduling and bookkeeping take when SmolLM2 runs 32 requests; empty without the model."""
    from kvpager.errors import ModelError
    from kvpager.models.source import resolve

    try:
        resolve("smollm2")
    except ModelError:
        return []
    from kvpager.engine import Engine, Sampling

    prompts = [list(range(1000 + 40 * i, 1040 + 40 * i)) for i in range(32)]
    with Engine("smollm2", capacity="256MiB") as engine:
        done = list(engine.generate(prompts, Sampling(max_tokens=tokens, ignore_eos=True)))
        if any(len(completion.token_ids) != tokens for completion in done):
            raise InvariantError("a request lost tokens")
        spent = engine.statistics()
    step = spent.model_seconds + spent.bookkeeping_seconds + spent.sampling_seconds
    return [
        Result("engine_bookkeeping_share/smollm2_32", 100 * spent.bookkeeping_seconds / step, "percent", 1.0),
        Result("engine_bookkeeping_per_step/smollm2_32", 1e6 * spent.bookkeeping_seconds / spent.steps, "us"),
    ]
