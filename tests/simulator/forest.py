"""Random traces small enough for models that look at everything: prompts that share beginnings."""

import random

import numpy as np

from kvpager.simulator.trace import Trace

PAGE_TOKENS = 4


def random_trace(seed: int, requests: int = 120, width: int = 3, longest: int = 8, step: float = 1.0) -> Trace:
    """Chains over ``width`` contents a level, so that early pages are shared by many; some tails are partial."""
    draw = random.Random(seed)
    number: dict[tuple[int, ...], int] = {}
    parents: list[int] = []
    chains, partial, tokens = [], [], []
    for _ in range(requests):
        words = [min(draw.randrange(width), draw.randrange(width)) for _ in range(draw.randint(1, longest))]
        is_partial = draw.random() < 0.4
        if is_partial:
            words[-1] += 10 * draw.randrange(1, PAGE_TOKENS)  # tens: the tokens it lacks; it is no full page
        chain = []
        for depth in range(1, len(words) + 1):
            path = tuple(words[:depth])
            if path not in number:
                number[path] = len(parents)
                parents.append(chain[-1] if chain else -1)
            chain.append(number[path])
        chains.append(chain)
        partial.append(is_partial)
        tokens.append(PAGE_TOKENS * len(chain) - words[-1] // 10)
    return trace_of(
        chains,
        times=np.cumsum([draw.choice([0.0, step, 3 * step]) for _ in chains]),
        input_tokens=tokens,
        output_tokens=[draw.randrange(40) for _ in chains],
        stop=[draw.randrange(3) for _ in chains],
        partial=partial,
        parents=parents,
    )


def trace_of(
    chains: list[list[int]],
    *,
    times: np.ndarray | None = None,
    input_tokens: list[int] | None = None,
    output_tokens: list[int] | None = None,
    stop: list[int] | None = None,
    partial: list[bool] | None = None,
    parents: list[int] | None = None,
) -> Trace:
    """A trace of these chains of page numbers; whole pages, one request a second, unless said otherwise."""
    count = len(chains)
    pages = np.array([page for chain in chains for page in chain], np.int32)
    if parents is None:
        found = {page: before for chain in chains for before, page in zip([-1, *chain], chain, strict=False)}
        parents = [found[page] for page in range(len(found))]
    return Trace(
        name="forest",
        page_tokens=PAGE_TOKENS,
        first=np.cumsum([0, *map(len, chains)]).astype(np.int64),
        pages=pages,
        parent=np.array(parents, np.int32),
        times=np.arange(count, dtype=np.float64) if times is None else times.astype(np.float64),
        input_tokens=np.array(
            [PAGE_TOKENS * len(chain) for chain in chains] if input_tokens is None else input_tokens, np.int32
        ),
        output_tokens=np.array([0] * count if output_tokens is None else output_tokens, np.int32),
        stop=np.array([0] * count if stop is None else stop, np.uint8),
        has_partial_tail=np.array([False] * count if partial is None else partial, bool),
    )
