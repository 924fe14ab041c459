"""A trace: which pages each of many requests read, in numpy arrays, as everything in the simulator takes it.

    request r reads pages[first[r] : first[r + 1]], root first

Pages are numbered 0 .. num_blocks - 1 in the order in which they first appear. One number is one (parent, content), so
all chains together form a forest: ``parent[page]`` is the page before it in every request that reads it.

Knows no file format (readers/) and no policy. What a trace does not tell: the pages of the *output* are not among its
pages unless a later request sends them back as input.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from kvpager.config.shown import shown
from kvpager.config.sizes import parse_size
from kvpager.errors import ConfigError

NO_PAGE = -1  # the parent of a root


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of time; those of one moment in the order of their file (R of them, U distinct pages)."""

    name: str
    page_tokens: int
    first: np.ndarray  # int64 [R + 1]
    pages: np.ndarray  # int32 [references]
    parent: np.ndarray  # int32 [U], NO_PAGE at roots
    times: np.ndarray  # float64 [R], seconds
    input_tokens: np.ndarray  # int32 [R]
    output_tokens: np.ndarray  # int32 [R]
    stop: np.ndarray  # uint8 [R], eviction.policy.StopReason
    has_partial_tail: np.ndarray  # bool [R]: the last page is not full
    skipped_lines: int = 0  # damaged ones, left out because the reader was told so

    def __post_init__(self) -> None:
        for field, dtype in _DTYPES.items():
            array = getattr(self, field)
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
                raise ConfigError(f"trace {self.name!r}: {field} must be an array of {np.dtype(dtype)}, one dimension")
            array.flags.writeable = False
        _check_requests(self)
        _check_pages(self)

    @property
    def num_requests(self) -> int:
        return len(self.times)

    @property
    def num_references(self) -> int:
        return len(self.pages)

    @property
    def num_blocks(self) -> int:
        """Distinct pages: the capacity at which nothing is ever evicted."""
        return len(self.parent)

    @property
    def second_half(self) -> int:
        """The first request of the second half, by number of requests: where a learning policy has warmed up."""
        return self.num_requests // 2

    @property
    def num_pages(self) -> np.ndarray:
        """int64 [R]: how many pages each request reads."""
        return np.diff(self.first)

    def require_pages(self) -> None:
        """Raises ConfigError for a trace of arrivals alone: nothing can hit in it."""
        if self.num_requests and not self.num_references:
            raise ConfigError(
                f"trace {self.name!r} tells when requests came, but not what they read: replay another trace with "
                f"its arrivals (--arrivals)"
            )

    def hit_tokens(self, hit_pages: np.ndarray) -> np.ndarray:
        """int64 [R]: the prompt tokens in the first ``hit_pages[r]`` pages of each request."""
        return np.minimum(np.asarray(hit_pages, np.int64) * self.page_tokens, self.input_tokens)

    def token_ratio(self, hit_pages: np.ndarray, start: int = 0) -> float:
        """Tokens hit by the requests from ``start`` on, per prompt token of theirs; 0 where they have none."""
        asked = int(self.input_tokens[start:].sum(dtype=np.int64))
        return float(self.hit_tokens(hit_pages)[start:].sum()) / asked if asked else 0.0

    def block_ratio(self, hit_pages: np.ndarray, start: int = 0) -> float:
        """Pages hit by the requests from ``start`` on, per page they read. A partial page counts as a full one."""
        asked = int(self.first[-1] - self.first[start])
        return float(np.asarray(hit_pages)[start:].sum(dtype=np.int64)) / asked if asked else 0.0

    def shared_head(self, share: float = 0.5) -> np.ndarray:
        """int32 [n]: the leading pages that more than ``share`` of all requests read, such as a system prompt.

        One such page can be most of what a small cache hits; ``net_of_head`` gives the hits beside it. ``share`` is at
        least a half, so that there is one chain of them at most.
        """
        if not 0.5 <= share < 1:
            raise ConfigError(f"share must be from 0.5 to below 1, not {share}")
        uses = np.bincount(self.pages, minlength=self.num_blocks)
        return np.flatnonzero(uses > share * self.num_requests).astype(np.int32)  # parents have lower numbers

    def net_of_head(self, hit_pages: np.ndarray) -> np.ndarray:
        """int64 [R]: ``hit_pages`` less those of the shared head."""
        in_head = np.zeros(self.num_blocks + 1, bool)
        in_head[self.shared_head()] = True
        before = np.concatenate([[0], np.cumsum(in_head[self.pages])])
        last = self.first[:-1] + np.asarray(hit_pages, np.int64)
        return np.asarray(hit_pages, np.int64) - (before[last] - before[self.first[:-1]])

    def capacity(self, size: int | str, bytes_per_token: int | None = None) -> int:
        """How many blocks ``size`` is.

        ``"5%"`` is a share of the distinct pages, to the nearest block; ``"8GiB"`` a size at ``bytes_per_token``,
        rounded down; and a number, also as a text, is one of blocks. Raises ConfigError for less than one block.
        """
        blocks = self._blocks_of(size, bytes_per_token)
        if blocks < 1:
            raise ConfigError(f"capacity {shown(size)} is less than one block of trace {self.name!r}; give more")
        return blocks

    def _blocks_of(self, size: int | str, bytes_per_token: int | None) -> int:
        text = str(size).strip()
        if isinstance(size, bool):
            raise ConfigError(f"a capacity is a number of blocks or a text such as '5%' or '8GiB', not {shown(size)}")
        if text.removeprefix("-").isdecimal():
            return int(text)
        if text.endswith("%"):
            try:
                share = Fraction(text[:-1].strip()) / 100
            except (ValueError, ZeroDivisionError):
                raise ConfigError(f"capacity {shown(size)} can't be read; write a share like '0.5%'") from None
            if not 0 < share <= 1:
                raise ConfigError(f"capacity {shown(size)} must be above 0% and at most 100%")
            return int(share * self.num_blocks + Fraction(1, 2))
        total = parse_size(text)
        if bytes_per_token is None:
            raise ConfigError(
                f"capacity {shown(size)} needs the bytes of KV per token (--model or "
                "--bytes-per-token); or give blocks or a share"
            )
        if bytes_per_token < 1:
            raise ConfigError(f"bytes per token must be at least 1, not {bytes_per_token}")
        return total // (bytes_per_token * self.page_tokens)

    def with_arrivals(self, other: "Trace") -> "Trace":
        """These requests in this order at the times of ``other``, whose pattern is repeated where it is shorter."""
        if not other.num_requests:
            raise ConfigError(f"trace {other.name!r} has no arrivals to borrow")
        rounds, places = np.divmod(np.arange(self.num_requests), other.num_requests)
        times = other.times - other.times[0]
        gap = times[-1] / max(1, len(times) - 1)  # between the last arrival of a round and the first of the next
        return replace(self, name=f"{self.name}@{other.name}", times=times[places] + rounds * (times[-1] + gap))


_DTYPES = {
    "first": np.int64,
    "pages": np.int32,
    "parent": np.int32,
    "times": np.float64,
    "input_tokens": np.int32,
    "output_tokens": np.int32,
    "stop": np.uint8,
    "has_partial_tail": np.bool_,
}


def _check_requests(trace: Trace) -> None:
    def require(is_true: bool | np.bool_, what: str) -> None:
        if not is_true:
            raise ConfigError(f"trace {trace.name!r}: {what}")

    require(trace.page_tokens >= 1, "page_tokens must be at least 1")
    for field in ("input_tokens", "output_tokens", "stop", "has_partial_tail"):
        require(len(getattr(trace, field)) == len(trace.times), f"{field} must have one entry a request")
    require(len(trace.first) == len(trace.times) + 1, "first must have one entry more than there are requests")
    require(trace.first[0] == 0 and trace.first[-1] == len(trace.pages), "first must go from 0 to the last page")
    counts = np.diff(trace.first)
    require((counts >= 0).all(), "first must not fall")
    require(np.isfinite(trace.times).all() and (np.diff(trace.times) >= 0).all(), "times must be finite and not fall")
    require((trace.input_tokens >= 0).all() and (trace.output_tokens >= 0).all(), "tokens must not be negative")
    partial = trace.has_partial_tail
    spare = counts * trace.page_tokens - trace.input_tokens  # above 0: what the last page lacks
    require((spare[~partial] <= 0).all(), "a request has fewer tokens than its full pages hold")
    require(
        ((spare[partial] > 0) & (spare[partial] < trace.page_tokens) & (counts[partial] > 0)).all(),
        "a request with a partial last page must have some tokens in it, and fewer than a full one",
    )


def _check_pages(trace: Trace) -> None:
    pages = trace.pages
    if not len(pages):
        if len(trace.parent):
            raise ConfigError(f"trace {trace.name!r}: has parents of pages that nobody reads")
        return
    highest = np.maximum.accumulate(pages)
    is_new = np.diff(highest, prepend=np.int32(-1))
    if pages.min() < 0 or is_new.max() > 1 or highest[-1] + 1 != len(trace.parent):
        raise ConfigError(f"trace {trace.name!r}: pages must be numbered from 0 in the order of first appearance")
    if (trace.parent[pages] != page_before(trace.first, pages)).any():
        raise ConfigError(f"trace {trace.name!r}: a page appears behind another one than its parent")


def page_before(first: np.ndarray, pages: np.ndarray) -> np.ndarray:
    """[references]: the page before each in its request, NO_PAGE at the first."""
    before = np.empty_like(pages)
    before[1:] = pages[:-1]
    starts = first[:-1][first[:-1] < first[1:]]
    before[starts] = NO_PAGE
    return before
