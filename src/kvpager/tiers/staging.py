"""The staging window: a little memory through which a step reads parts of pages that have no block.

    held page of a tier --read_parts--> row of the window --attention--> partial result

A *part* is one layer's bytes of a page. The requests of a step are known in advance, so while one is attended to the
next ones are being read, as many as the window has room for. A part that has not the checksum it had when its page left
the device is an error, never a row. Pages whose parts' checksums are not known yet (a prefix found in a tier) are read
whole once, compared with the page's own checksum, and their parts' checksums noted.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from kvpager.errors import TierError
from kvpager.types import TierKind


@dataclass(slots=True)
class PartRequest:
    """The same part of some pages of one sequence and layer group. ``slots`` and ``pages`` [n].

    ``checksums`` uint64 [all pages, layers of the group] and ``is_known`` bool [all pages] are the sequence's own
    columns, by ``pages``; those of pages that are read for the first time are filled in by the worker that reads them.
    """

    tier: TierKind
    slots: np.ndarray  # int32: held slots of the tier
    start: int  # first byte of the part in a page
    size: int
    layer_index: int  # of the group: the column of ``checksums``
    checksums: np.ndarray
    is_known: np.ndarray
    pages: np.ndarray


@dataclass(slots=True)
class Staged:
    """The parts of one request: ``addresses`` int64 [n] of each part's first byte; ``errors`` of those that failed.

    ``stalled``: seconds it was waited for. ``num_bytes`` that were read for it.
    """

    addresses: np.ndarray
    errors: dict[int, TierError] = field(default_factory=dict)
    stalled: float = 0.0
    num_bytes: int = 0


class PartStream(Protocol):
    """The requests of one step, in order. A context: leaving it drops what was read ahead."""

    def next(self) -> Staged:
        """The next request's parts; what the one before covered may be overwritten from now on."""
        ...

    def __enter__(self) -> "PartStream": ...

    def __exit__(self, *_: object) -> None: ...


class Pace(Protocol):
    """Who else wants the processors. Called by the thread that computes a step.

    ``is_shared``: somebody may; work is cut into pieces of a few milliseconds then.
    """

    is_shared: bool

    def breathe(self) -> None:
        """A small piece of work is done: others may have a turn now. May raise to abandon the step."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """Inside, nothing is computed: others may go on meanwhile."""
        ...


class NoPace:
    """Nobody else wants them."""

    is_shared = False

    def breathe(self) -> None:
        pass

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()


class Window(Protocol):
    """``num_bytes`` of memory. ``pace`` is set by whoever shares processors between steps."""

    num_bytes: int
    pace: Pace

    def close(self) -> None:
        """Ends the threads that read. REQUIRES: every stream is closed."""
        ...

    def stream(self, requests: Iterator[PartRequest]) -> PartStream:
        """Reads the parts of ``requests`` in order, ahead of need. Several streams may be open.

        Raises ConfigError, with the numbers, where one request does not fit into the window.
        """
        ...

    def fetch(self, request: PartRequest) -> Staged:
        """One request, now: a stream of one. Its rows hold until the next ``fetch`` by the same thread."""
        ...
