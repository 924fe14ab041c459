"""Appendix C's row 5 with a small random model: ten sequences of 1,048,576 tokens over a pool for an eighth of one.

All pages exist, on the disk tier, with keys and checksums; each decode step reads them from there. What contiguous
allocation would need does not fit: not even one request's run. Measured: that all ten give their tokens, their rate,
what was read, peak memory, and page tables. Not measured: computing the prompts, of which the engine computes the last
token (bench/million.py computes more of them, with a larger model).
"""

import resource
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from kvpager.bench.appendix_full_loads import AppendixRow
from kvpager.bench.million_served import Served, serve, write_by_hand
from kvpager.bench.random_pages import RandomPages
from kvpager.bench.report import SEED, Result
from kvpager.config.tiers import DiskTier
from kvpager.engine import Engine, Sampling
from kvpager.errors import RequestError

_PAGE_SIZE = 64
_POOL_SHARE = 1 / 8  # of one sequence
_TOKENS = 3  # of each
_OUTPUT_PAGES = 2


def measure(model: PreTrainedModel, row: AppendixRow, context: int, folder: str | None = None) -> Iterator[Result]:
    """``context``: tokens of a sequence, the row's or fewer."""
    name, pages = f"appendix_c_true_row{row.number}", context // _PAGE_SIZE
    prompt_tokens = context - _OUTPUT_PAGES * _PAGE_SIZE + 1
    blocks = int(pages * _POOL_SHARE)
    with tempfile.TemporaryDirectory(prefix="kvpager-bench-", dir=folder) as made:
        yield Result(f"{name}_context", float(context), "tokens")
        yield Result(f"{name}_refused_without_tiers", float(_is_refused(model, prompt_tokens, blocks)), "yes=1")
        served = _serve(model, row.requests, prompt_tokens, pages, Path(made))
    is_complete = all(len(output) == _TOKENS for output in served.outputs)
    yield Result(f"{name}_runs", float(is_complete and len(served.outputs) == row.requests), "yes=1", at_least=1.0)
    yield Result(f"{name}_decode", served.tokens_per_second, "tokens/s")
    yield Result(f"{name}_first_tokens", served.first, "s")
    yield Result(f"{name}_read_from_disk", served.bytes / 1e9, "GB")
    yield Result(f"{name}_table_bytes", float(served.table_bytes), "bytes")
    yield Result(f"{name}_pages", float(served.pages), "pages")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield Result(f"{name}_peak_rss", peak / 2**30, "GiB")


def _is_refused(model: PreTrainedModel, prompt_tokens: int, blocks: int) -> bool:
    """The same pool with nothing below it can't hold one of them, however its memory is given out."""
    with Engine(model, num_blocks=blocks, page_size=_PAGE_SIZE) as engine:
        try:
            engine.submit(array("i", bytes(4 * prompt_tokens)), Sampling(max_tokens=_TOKENS))
        except RequestError:
            return True
    return False


def _serve(model: PreTrainedModel, count: int, prompt_tokens: int, pages: int, folder: Path) -> Served:
    draw = np.random.default_rng(SEED)
    blocks = int(pages * _POOL_SHARE)
    with Engine(
        model,
        num_blocks=blocks,
        page_size=_PAGE_SIZE,
        tiers=(DiskTier(folder, (count * pages + 64) * 17 * 1024),),
        resident_share=1 / count,
        partial_hits=False,  # random prompts may begin with the same token
    ) as engine:
        content, prompts = RandomPages(engine.layout), []
        for number in range(count):
            ids = draw.integers(0, engine.vocab_size, prompt_tokens, np.int32)
            prompts.append(array("i", ids.tobytes()))
            until = (prompt_tokens - 1) // _PAGE_SIZE * _PAGE_SIZE
            write_by_hand(engine, prompts[-1], until, content, number * pages)  # type: ignore[arg-type]
        return serve(engine, prompts, _TOKENS)  # type: ignore[arg-type]
