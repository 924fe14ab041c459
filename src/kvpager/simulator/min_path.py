"""The offline optimum at one capacity: the page whose next use is farthest goes first (MIN, Belady 1966), leaves first.

Whoever uses a page uses its ancestors too, so a page is needed again no later than its descendants, and the farthest
next use is always at a leaf. All pages with the same next user r lie on the chain of r, and the deepest goes first.
Hence only their number matters: ``waiting[r]`` cached pages are next used by request r, and that is what r will hit.
Pages that nobody uses again wait for request R, after the last one.

It is the optimum of the sequential replay, in which every page of a request becomes cached: no order of eviction hits
more pages in total. A partial last page counts like a full one, so in tokens it is the optimum but for those.
"""

from heapq import heappop, heappush

import numpy as np

from kvpager import native
from kvpager.errors import ConfigError
from kvpager.simulator.path import ReplayedPath
from kvpager.simulator.trace import Trace


def replay_min(trace: Trace, capacity: int) -> ReplayedPath:
    """The optimum with ``capacity`` blocks. A request longer than that keeps only its first ``capacity`` pages."""
    trace.require_pages()
    if capacity < 1:
        raise ConfigError(f"a cache needs at least one block, not {capacity}")
    kernels = native.module()
    if kernels is None:
        return replay_min_in_numpy(trace, capacity)
    hits = np.empty(trace.num_requests, np.int32)
    evictions = np.empty(trace.num_requests, np.int32)
    kernels.replay_min(trace.first, trace.pages, trace.num_blocks, capacity, hits, evictions)
    return ReplayedPath("min", capacity, hits, evictions)


def replay_min_in_numpy(trace: Trace, capacity: int) -> ReplayedPath:
    """The same, some thirty to a hundred times slower: where there are no native kernels, and to compare them with."""
    num_requests = trace.num_requests
    hits = np.zeros(num_requests, np.int32)
    evictions = np.zeros(num_requests, np.int32)
    users = next_users(trace)
    waiting = np.zeros(num_requests + 1, np.int64)
    farthest: list[int] = []  # heap of the requests that any page waits for, negated; some are out of date
    size = 0
    first = trace.first.tolist()
    for request in range(num_requests):
        chain = users[first[request] : first[request + 1]][:capacity]
        hits[request] = found = int(waiting[request])
        waiting[request] = 0
        evictions[request] = surplus = max(0, size - found + len(chain) - capacity)
        size += len(chain) - found - surplus
        while surplus:  # the request's own pages are not among those that wait
            user = -farthest[0]
            gone = min(surplus, int(waiting[user]))
            waiting[user] -= gone
            surplus -= gone
            if not waiting[user]:
                heappop(farthest)
        for user, count in zip(*np.unique(chain, return_counts=True), strict=True):
            if not waiting[user]:
                heappush(farthest, -int(user))
            waiting[user] += count
    return ReplayedPath("min", capacity, hits, evictions)


def next_users(trace: Trace) -> np.ndarray:
    """int32 [references]: the request that next uses each reference's page; the number of requests if none does."""
    next_user = np.full(trace.num_references, trace.num_requests, np.int32)
    order = np.argsort(trace.pages, kind="stable")
    users = np.repeat(np.arange(trace.num_requests, dtype=np.int32), trace.num_pages)[order]
    is_again = trace.pages[order][1:] == trace.pages[order][:-1]
    next_user[order[:-1][is_again]] = users[1:][is_again]
    return next_user
