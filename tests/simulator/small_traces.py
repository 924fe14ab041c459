"""Traces for tests, written as lists of chains of ids; and random ones over a small trie."""

import random
from collections.abc import Sequence

import numpy as np

from kvpager.simulator.readers.chains import Requests, build_trace
from kvpager.simulator.trace import Trace


def trace_of(*chains: Sequence[int], page_tokens: int = 4, tails: Sequence[int] = ()) -> Trace:
    """One request a second. ``tails``: so many tokens each request's last page lacks; none where not given."""
    requests = Requests()
    for i, chain in enumerate(chains):
        tokens = len(chain) * page_tokens - (tails[i] if i < len(tails) else 0)
        requests.add(float(i), np.array(chain, np.int64), tokens, 1)
    return build_trace("small", requests, page_tokens)


def random_trace(rng: random.Random, *, requests: int, fanout: int, depth: int) -> Trace:
    """Each request walks down a trie from one of ``fanout`` roots, taking one of ``fanout`` children each time."""
    chains = []
    for _ in range(requests):
        node, chain = 0, []
        for _ in range(rng.randint(1, depth)):
            node = node * fanout + rng.randint(1, fanout)
            chain.append(node)
        chains.append(chain)
    return trace_of(*chains)


def chains_of(trace: Trace) -> list[list[int]]:
    return [trace.pages[a:b].tolist() for a, b in zip(trace.first, trace.first[1:], strict=False)]
