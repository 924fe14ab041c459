"""What a replay says of each request, whichever way it was computed."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ReplayedPath:
    """A sequential replay of a trace of R requests at one capacity.

    ``hit_pages``, int32 [R]: how many of its leading pages each request found. ``evictions``, int32 [R]: how many
    blocks left to make room for it. ``Trace.hit_tokens``, ``token_ratio`` and ``block_ratio`` take ``hit_pages``.
    """

    policy: str
    capacity: int  # blocks
    hit_pages: np.ndarray
    evictions: np.ndarray
