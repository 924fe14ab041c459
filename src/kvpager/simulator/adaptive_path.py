"""The adaptive policy at one capacity, over arrays: the policy's own native code, driven without its protocol."""

import numpy as np

from kvpager import native
from kvpager.simulator.page_keys import page_keys
from kvpager.simulator.path import ReplayedPath
from kvpager.simulator.trace import Trace


def replay_adaptive(trace: Trace, capacity: int) -> ReplayedPath | None:
    """``capacity`` blocks. None where there are no native kernels: then the policy is replayed as any other."""
    kernels = native.module()
    if kernels is None or not trace.num_references:
        return None
    hits = np.empty(trace.num_requests, np.int32)
    evictions = np.empty(trace.num_requests, np.int32)
    kernels.replay_adaptive(
        trace.first,
        trace.pages,
        trace.parent,
        page_keys(trace.num_blocks),
        trace.times,
        trace.output_tokens,
        trace.stop,
        trace.has_partial_tail,
        capacity,
        hits,
        evictions,
    )
    return ReplayedPath("adaptive", capacity, hits, evictions)
