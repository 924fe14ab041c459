"""LRU stack distances (Mattson, Gecsei, Slutz, Traiger 1970): the capacity at which each reference would have hit.

LRU that drops leaves first keeps the stack property: what a cache of C blocks holds is the C pages at the top of one
stack, whatever C is, and a page lies below its ancestors. Hence a reference is a prefix hit exactly if its distance,
the number of pages above it, is less than C; whether its ancestors hit needs no second look.

As in lru_path.py, the pages whose last user is request t are neighbours in the stack. So distances are made of runs: of
the references of one request whose pages have the same last user, each lies one below the other.
"""

from itertools import pairwise

import numpy as np

NEVER = -1  # the distance of a page's first use


def stack_distances(first: np.ndarray, pages: np.ndarray, num_blocks: int) -> np.ndarray:
    """int32 [references]: how many distinct pages lie above each one's page, or NEVER. Arguments: as in a Trace."""
    users = last_users(first, pages, num_blocks)
    is_start = np.empty(len(pages), bool)
    is_start[1:] = users[1:] != users[:-1]
    is_start[first[:-1][first[:-1] < first[1:]]] = True
    starts = np.flatnonzero(is_start)
    lengths = np.diff(starts, append=len(pages))
    requests = np.searchsorted(first, starts, side="right") - 1
    above = _pages_above(requests, users[starts], lengths, len(first) - 1)
    distances = np.arange(len(pages)) + np.repeat(above - starts, lengths)
    distances[users == NEVER] = NEVER
    return distances.astype(np.int32)


def last_users(first: np.ndarray, pages: np.ndarray, num_blocks: int) -> np.ndarray:
    """int32 [references]: the request that last used each reference's page before, or NEVER."""
    users = np.empty(len(pages), np.int32)
    last = np.full(num_blocks, NEVER, np.int32)
    borders = first.tolist()
    for request, (start, stop) in enumerate(pairwise(borders)):
        chain = pages[start:stop]
        users[start:stop] = last[chain]
        last[chain] = request
    return users


def _pages_above(requests: np.ndarray, users: np.ndarray, lengths: np.ndarray, num_requests: int) -> np.ndarray:
    """int64 [runs]: how many pages were last used after ``users[i]``, when request ``requests[i]`` comes."""
    above = np.zeros(len(requests), np.int64)
    newest = NewestFirst(num_requests)
    runs = list(zip(requests.tolist(), users.tolist(), lengths.tolist(), strict=True))
    i = 0
    while i < len(runs):
        request, before = runs[i][0], i
        while i < len(runs) and runs[i][0] == request:
            if runs[i][1] != NEVER:
                above[i] = newest.count_after(runs[i][1])
            i += 1
        for _, user, length in runs[before:i]:  # not earlier: all of them lie where they lay before the request
            if user != NEVER:
                newest.add(user, -length)
            newest.add(request, length)
    return above


class NewestFirst:
    """How many pages have each request as their last user: a binary indexed tree (Fenwick 1994) over the requests."""

    def __init__(self, num_requests: int) -> None:
        self.total = 0
        self._sums = [0] * (num_requests + 1)

    def add(self, request: int, count: int) -> None:
        self.total += count
        place = request + 1
        while place < len(self._sums):
            self._sums[place] += count
            place += place & -place

    def count_after(self, request: int) -> int:
        """Pages whose last user came after ``request``."""
        place, until = request + 1, 0
        while place:
            until += self._sums[place]
            place &= place - 1
        return self.total - until
