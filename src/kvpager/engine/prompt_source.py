"""K and V of prompts that an engine does not compute, for they come from elsewhere. A seam: knows no engine.

Servers that give prompts to machines of their own have such a source (bench/appendix_decode.py is one, with made-up
numbers). What it has beyond what the cache finds is written as the request starts, and need not be computed.
"""

from typing import Protocol

from kvpager.cache.sequence import Sequence
from kvpager.engine.request import Request


class PromptSource(Protocol):
    def num_tokens(self, request: Request) -> int:
        """So many of the first tokens of its prompt are there; all but the last at most, whose logits are wanted.
        Asked whenever the request might start; it must not become fewer."""

    def write(self, request: Request, seq: Sequence, start: int) -> None:
        """Writes K and V of those from ``start`` on, which is less than ``num_tokens``, to ``seq``."""
