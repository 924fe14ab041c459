"""LRU at one capacity, over arrays: the sequential replay without a cache, a policy or a step.

A request touches all its pages at once and lets go of the last one first, so every page was used no earlier than its
descendants: the pages whose last user is request t are neighbours in the chain of t, those with the highest depths.
Hence no list of blocks is needed, only, for each request t,

    end[t]    the depth at which its cached pages end: a page at depth k, last used by t, is cached if k < end[t]
    alive[t]  how many cached pages have t as their last user: depths end[t] - alive[t] .. end[t] - 1

and a victim is always the deepest page of the oldest request with any alive.
"""

import numpy as np

from kvpager import native
from kvpager.errors import ConfigError
from kvpager.simulator.path import ReplayedPath
from kvpager.simulator.trace import Trace


def replay_lru(trace: Trace, capacity: int) -> ReplayedPath:
    """LRU with ``capacity`` blocks. A request longer than that keeps only its first ``capacity`` pages."""
    trace.require_pages()
    if capacity < 1:
        raise ConfigError(f"a cache needs at least one block, not {capacity}")
    kernels = native.module()
    if kernels is None:
        return replay_lru_in_numpy(trace, capacity)
    hits = np.empty(trace.num_requests, np.int32)
    evictions = np.empty(trace.num_requests, np.int32)
    kernels.replay_lru(trace.first, trace.pages, trace.num_blocks, capacity, hits, evictions)
    return ReplayedPath("lru", capacity, hits, evictions)


def replay_lru_in_numpy(trace: Trace, capacity: int) -> ReplayedPath:
    """The same, some thirty to a hundred times slower: where there are no native kernels, and to compare them with."""
    num_requests = trace.num_requests
    hits = np.zeros(num_requests, np.int32)
    evictions = np.zeros(num_requests, np.int32)
    last_user = np.full(trace.num_blocks, num_requests, np.int64)  # num_requests: none yet, and its end stays 0
    end = np.zeros(num_requests + 1, np.int64)
    alive = np.zeros(num_requests + 1, np.int64)
    depths = np.arange(int(trace.num_pages.max(initial=0)))
    size = oldest = 0
    first = trace.first.tolist()
    for request in range(num_requests):
        chain = trace.pages[first[request] : first[request + 1]][:capacity]
        users = last_user[chain]
        num_hits = int(np.count_nonzero(depths[: len(chain)] < end[users]))
        np.subtract.at(alive, users[:num_hits], 1)
        last_user[chain] = request
        end[request] = alive[request] = len(chain)
        size += len(chain) - num_hits
        hits[request] = num_hits
        evictions[request] = surplus = max(0, size - capacity)
        size -= surplus
        while surplus:
            gone = min(surplus, int(alive[oldest]))
            alive[oldest] -= gone
            end[oldest] -= gone
            surplus -= gone
            oldest += not alive[oldest]
    return ReplayedPath("lru", capacity, hits, evictions)
