"""An engine that only decodes: prompts are computed elsewhere, and their K and V are there as a request starts.

So servers are built that give prompts to machines of their own; Azure's traces were published with one (Splitwise).
What memory sets is how many requests decode together, and here nothing else is measured. The K and V that come are
random numbers, the same for a request whichever engine it comes to; all but a prompt's last token are there. Writing
them takes time that does not count (``seconds``). What a stopped request had generated is computed again.
"""

import time

import torch

from kvpager.bench.report import SEED
from kvpager.cache.sequence import Sequence
from kvpager.engine import Engine
from kvpager.engine.request import Request

_SHIFTS = 97  # beginnings in the random numbers: so many requests differ


class PromptsElsewhere:
    """A source of prompts (engine/prompt_source.py) for one engine: it has all but the last token of each."""

    def __init__(self, engine: Engine) -> None:
        self.seconds = 0.0  # that writing what came took, inside of ``engine.step``
        layout, group = engine.layout, engine.layout.groups[0]
        shape = (2, layout.layers, engine.max_tokens + _SHIFTS, group.kv_heads, group.head_dim)
        self._rows = torch.randn(shape, generator=torch.Generator().manual_seed(SEED)).to(engine.model.dtype)

    def num_tokens(self, request: Request) -> int:
        return len(request.prompt) - 1

    def write(self, request: Request, seq: Sequence, start: int) -> None:
        begin = time.perf_counter()
        shift = request.id % _SHIFTS
        k, v = self._rows[:, :, shift + start : shift + self.num_tokens(request)]
        seq.write(start, k, v)
        self.seconds += time.perf_counter() - begin
