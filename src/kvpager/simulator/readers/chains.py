"""From the ids that a file names to the pages of a Trace: numbers that are distinct where the prefix is.

Files name pages in three ways: by the whole prefix (ids form a forest and are pages already), by content alone, or by
content within one session. Content alone is not a prefix: a document that appears behind two prompts has the same ids
twice, but can't be shared. So ids that do not form a forest are chained here, one page per (page before, id).
"""

from dataclasses import dataclass, field

import numpy as np

from kvpager.errors import ConfigError
from kvpager.simulator.trace import NO_PAGE, Trace, page_before


@dataclass(slots=True)
class Requests:
    """What a reader collects, in the order of the file. ``ids``: an array of integers per request, root first."""

    ids: list[np.ndarray] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    stop: list[int] = field(default_factory=list)

    def add(self, time: float, ids: np.ndarray, input_tokens: int, output_tokens: int, stop: int = 0) -> None:
        self.times.append(time)
        self.ids.append(ids)
        self.input_tokens.append(input_tokens)
        self.output_tokens.append(output_tokens)
        self.stop.append(stop)


def build_trace(
    name: str, requests: Requests, page_tokens: int, *, joined: int | None = None, skipped_lines: int = 0
) -> Trace:
    """The requests in order of time, those of one moment in order of the file.

    ``page_tokens``: of the pages that the ids name. ``joined``: tokens of a page of the trace, a multiple of those;
    what does not fill a page at the end is left out. Raises ConfigError where it is none.
    """
    every, rest = divmod(page_tokens if joined is None else joined, page_tokens)
    if every < 1 or rest:
        raise ConfigError(f"page_tokens must be a multiple of the file's {page_tokens}, not {joined}")
    order = np.argsort(np.array(requests.times, np.float64), kind="stable")
    chains = [requests.ids[i] for i in order]
    first = np.concatenate([[0], np.cumsum([len(chain) for chain in chains], dtype=np.int64)]).astype(np.int64)
    ids = _small(np.concatenate(chains)) if len(chains) and first[-1] else np.empty(0, np.int32)
    if not _is_forest(first, ids):
        ids = _chained(first, ids)
    if every > 1:
        first, ids = _every(first, ids, every)
        page_tokens *= every
    pages, parent = _numbered(first, ids)
    input_tokens = np.array(requests.input_tokens, np.int32)[order]
    return Trace(
        name=name,
        page_tokens=page_tokens,
        first=first,
        pages=pages,
        parent=parent,
        times=np.array(requests.times, np.float64)[order],
        input_tokens=input_tokens,
        output_tokens=np.array(requests.output_tokens, np.int32)[order],
        stop=np.array(requests.stop, np.uint8)[order],
        has_partial_tail=np.diff(first) * page_tokens > input_tokens,
        skipped_lines=skipped_lines,
    )


def _small(ids: np.ndarray) -> np.ndarray:
    """The same ids as int32 from 0, for ids may be hashes of 64 bits."""
    if ids.min() >= 0 and ids.max() < max(1 << 20, 4 * len(ids)):
        return ids.astype(np.int32, copy=False)
    return np.unique(ids, return_inverse=True)[1].astype(np.int32)


def _is_forest(first: np.ndarray, ids: np.ndarray) -> bool:
    if not len(ids):
        return True
    before = page_before(first, ids)
    parent = np.empty(int(ids.max()) + 1, np.int32)
    parent[ids] = before
    return bool((parent[ids] == before).all())


def _chained(first: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """One number per (page before, id), depth by depth; numbers of a depth are above all those of lesser depths."""
    pages = np.empty(len(ids), np.int32)
    lengths = np.diff(first)
    longest_first = np.argsort(-lengths, kind="stable")
    starts, ends = first[:-1][longest_first], -lengths[longest_first]
    num_pages = 0
    for depth in range(int(lengths.max())):
        places = starts[: np.searchsorted(ends, -depth)] + depth  # of the requests longer than `depth`
        before = pages[places - 1].astype(np.int64) if depth else np.int64(0)
        distinct, numbers = np.unique(before << 32 | ids[places], return_inverse=True)
        pages[places] = num_pages + numbers
        num_pages += len(distinct)
    return pages


def _every(first: np.ndarray, ids: np.ndarray, every: int) -> tuple[np.ndarray, np.ndarray]:
    """The last id of each run of ``every``: in a forest it stands for the whole run and all before it."""
    lengths = np.diff(first) // every
    fewer = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    depth = np.arange(fewer[-1]) - np.repeat(fewer[:-1], lengths)
    return fewer, ids[np.repeat(first[:-1], lengths) + (depth + 1) * every - 1]


def _numbered(first: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pages in the order of first appearance, and their parents. REQUIRES: ids form a forest."""
    if not len(ids):
        return ids.astype(np.int32), np.empty(0, np.int32)
    appears = np.full(int(ids.max()) + 1, -1, np.int64)
    appears[ids[::-1]] = np.arange(len(ids) - 1, -1, -1)  # the last one written stays: the first place
    used = np.flatnonzero(appears >= 0)
    number = np.empty(len(appears), np.int32)
    number[used[np.argsort(appears[used])]] = np.arange(len(used), dtype=np.int32)
    pages = number[ids]
    parent = np.full(len(used), NO_PAGE, np.int32)
    parent[pages] = page_before(first, pages)
    return pages, parent
