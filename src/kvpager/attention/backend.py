"""What an attention backend offers: plan once a step, run once a layer."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kvpager.cache.step import StepBatch
from kvpager.memory.arena import Arena


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """What a model layer adds to plain causal attention.

    ``scale`` multiplies q.k (None: head_dim ** -0.5). ``softcap`` c bounds scores to c * tanh(score / c) before the
    mask. ``sinks`` [query_heads]: one logit per head that joins the softmax and has no value (GPT-OSS).
    The sliding window is a property of the layout, not of the call: pages behind it may be gone.
    """

    scale: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


DEFAULT_OPTIONS = LayerOptions()


class Plan(Protocol):
    """One step's work, the same for every layer."""

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: LayerOptions = DEFAULT_OPTIONS) -> Tensor:
        """Writes K and V of the new tokens into their blocks, then attends.

        q [tokens, query_heads, head_dim], k and v [tokens, kv_heads, head_dim], packed as in StepBatch. Query head h
        uses KV head h * kv_heads // query_heads. Returns [tokens, query_heads, head_dim] in q's dtype. Raises
        ConfigError for wrong shapes, dtypes or devices.
        """
        ...


class AttentionBackend(Protocol):
    name: str

    def plan(self, batch: StepBatch, arena: Arena) -> Plan:
        """Prepares one step: O(sequences + new tokens), and the page lists of what is read."""
        ...
