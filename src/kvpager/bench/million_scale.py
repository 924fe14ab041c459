"""How much ``kvpager bench million`` computes, and how much of it is left out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MillionScale:
    """``context``: tokens of a prompt. ``pool_share``: of one prompt's K and V that the pool holds.

    ``head_seconds``, ``tail_seconds``: as long as the beginning and the end of the prompt may take to compute, by what
    this machine was measured to do; what lies between is written by hand. None: all of it is computed.
    ``sequences`` at once, of which all but the first share their tokens with it up to ``shared``, a share of the
    context. ``exact_tokens`` and ``selective_tokens`` are decoded of one prompt, ``exact_tokens_each`` and
    ``selective_tokens_each`` of each of several. ``check_context``: of the comparison with a run without paging.
    """

    context: int = 1 << 20
    page_size: int = 64
    pool_share: float = 1 / 8
    head_seconds: float | None = None
    tail_seconds: float | None = None
    sequences: int = 10
    shared: float = 255 / 256
    budget: int = 4096
    exact_tokens: int = 8
    selective_tokens: int = 64
    exact_tokens_each: int = 4
    selective_tokens_each: int = 32
    check_context: int = 16384

    @property
    def is_quick(self) -> bool:
        return self.head_seconds is not None


FULL = MillionScale()
QUICK = MillionScale(
    head_seconds=150.0,
    tail_seconds=200.0,
    shared=0.0,
    exact_tokens=4,
    selective_tokens=32,
    exact_tokens_each=2,
    selective_tokens_each=8,
)
