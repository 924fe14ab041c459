"""Our attention as a Hugging Face attention function: the one seam between their models and our pages.

Their models call ``ALL_ATTENTION_FUNCTIONS["kvpager"](module, query, key, value, mask, scaling=..., **extras)`` once a
layer. What it does there is decided by the *attention call* that is active around the forward pass. Without one it
raises: a model never runs on pages nobody opened. Knows no cache and no sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from kvpager.attention.backend import LayerOptions, Plan
from kvpager.errors import InvariantError, UnsupportedModel
from kvpager.memory.layout import KVLayout
from kvpager.models.plain_llama import PlainLlama

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "kvpager"


class AttentionCall(Protocol):
    """One forward pass over pages."""

    layout: KVLayout

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
        """query [batch, heads, tokens, dim], key and value [batch, kv_heads, tokens, dim] of the new tokens.

        Returns [batch, tokens, heads, dim].
        """
        ...


_active: ContextVar[AttentionCall | None] = ContextVar("kvpager_attention_call", default=None)


@contextmanager
def attending(call: AttentionCall) -> Iterator[None]:
    """Forward passes inside use ``call``."""
    token = _active.set(call)
    try:
        yield
    finally:
        _active.reset(token)


class PackedCall:
    """A packed batch: one row that holds the new tokens of all sequences, as a plan's StepBatch has them."""

    def __init__(self, layout: KVLayout, plan: Plan) -> None:
        self.layout = layout
        self._plan = plan

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
        q, k, v = (rows[0].transpose(0, 1) for rows in (query, key, value))
        return self._plan.run(layer, q, k, v, options)[None]


def attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """The registered function. Raises rather than compute something else than the model asks for."""
    call = _active.get()
    if call is None:
        raise InvariantError("a model with paged attention was run outside of an open step; use the engine or attach()")
    layer = module.layer_idx
    if not isinstance(layer, int):
        raise UnsupportedModel(f"{type(module).__name__} does not say which layer it is")
    window = call.layout.groups[call.layout.places[layer].group].window
    if sliding_window is not None and sliding_window != window:
        raise InvariantError(f"layer {layer} has a window of {sliding_window}, but its pages are kept for {window}")
    if dropout:
        raise UnsupportedModel("attention dropout is for training; call model.eval() first")
    return call.attend(layer, query, key, value, LayerOptions(scaling, softcap, s_aux)), None


def no_mask(*_: object, **__: object) -> None:
    """The registered mask function: causality, window and padding follow from the pages."""
    return


@contextmanager
def paged_attention(model: PreTrainedModel | PlainLlama) -> Iterator[None]:
    """The model uses our attention inside; what it used before is restored, whatever happens."""
    if isinstance(model, PlainLlama):
        model.set_attention(NAME, attention_function)
        try:
            yield
        finally:
            model.set_attention(None, None)
        return
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attention_function)
    AttentionMaskInterface.register(NAME, no_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
