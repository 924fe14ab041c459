"""The layers of a plain Llama-like decoder with native kernels: nothing between matrix products but one call each.

    normed    = rms_norm(hidden += projected)   one call; `hidden` keeps the sum
    qkv       = normed @ [q | k | v]            rotary turns its q and k in place; attention reads them where they lie
    projected = attention @ o
    normed    = rms_norm(hidden += projected)
    gated     = silu_mul(normed @ [gate | up])
    projected = gated @ down                    added to `hidden` by the next layer's norm

The same roundings in the same order as the modules: where the matrix products have equal bits, so has everything else.
All layers of a pass use the same buffers, and so may the next pass; two that are under way at once must not. Before a
model's layers are handed out fused, each part is compared with the modules it stands for, on a few tokens. Where all
products are native, a whole pass is one native call instead (native_step.py). Knows no requests and no cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from operator import contains
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from kvpager import native
from kvpager.attention.backend import LayerOptions, Plan
from kvpager.attention.cpu import CpuPlan, PlainStep
from kvpager.integrations.decoder_layers import Decoder, DecoderLayer, NotPlain, recognise
from kvpager.integrations.fused_check import CHECK_POSITIONS, LocalPlan, Seen, require_same, watch
from kvpager.integrations.layer_buffers import Buffers, LayerRows, Widths
from kvpager.integrations.native_matrix import native_matrix
from kvpager.integrations.native_step import DTYPES, NativeStep
from kvpager.integrations.products import is_native, matrix_product
from kvpager.integrations.rotary_table import Angles, RotaryTable
from kvpager.memory.layout import KVLayout
from kvpager.tiers.rows import writable_dtypes

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def fused(model: PreTrainedModel, layout: KVLayout) -> Iterator[FusedDecoder | str]:
    """The layers of ``model`` fused, or why they can't be. REQUIRES: its attention is ours (``paged_attention``).

    Inside, weights that are used together lie together, and the parameters are views of them; afterwards each has
    storage of its own again. Their values and identities never change.
    """
    kernels = native.module()
    if kernels is None:
        yield f"no native kernels: {native.why_not()}"
        return
    try:
        decoder = recognise(model)
    except NotPlain as error:
        yield str(error)
        return
    try:
        yield _checked(model, decoder, layout, kernels)
    finally:
        decoder.separate()


class FusedDecoder:
    """Computes logits as the model's own forward does. Weights may change in place, but must not be replaced."""

    def __init__(
        self, model: PreTrainedModel, decoder: Decoder, layout: KVLayout, options: Sequence[LayerOptions], kernels: Any
    ) -> None:
        self._kernels = kernels
        self._decoder = decoder
        self._layers = [
            _Layer.of(parts, number, options[number], layout, kernels) for number, parts in enumerate(decoder.layers)
        ]
        if len({layer.widths for layer in self._layers}) != 1:
            raise NotPlain("layers differ in their widths")
        self._widths = self._layers[0].widths
        self._norm = _Norm.of(decoder.norm, kernels)
        weight = decoder.embedding.weight
        self._table = RotaryTable(decoder.rotary, weight, kernels)
        self.native_step: NativeStep | None = None
        if weight.dtype in DTYPES and weight.dtype in writable_dtypes(layout):
            self.native_step = NativeStep(decoder, options, self._widths, self._table, kernels)
        modules = list(model.modules())
        self._overrides = [module.__dict__ for module in modules]
        self._hooks: list[dict[int, Any]] = [
            torch_module._global_forward_hooks,
            torch_module._global_forward_pre_hooks,
            *(hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)),
        ]

    def is_current(self) -> bool:
        """Whether the modules would still compute what this does: nobody has hooked into one since."""
        return not any(self._hooks) and not any(map(contains, self._overrides, repeat("forward")))

    @torch.inference_mode()
    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        plan: Plan,
        keep: Tensor,
        buffers: Buffers | None = None,
        breathe: Callable[[], None] | None = None,
    ) -> Tensor:
        """Logits [len(keep), vocab] of the packed tokens ``ids`` [T] at ``positions`` [T], at the indices ``keep``.

        ``buffers``: of this pass alone until it returns; None: new ones. ``breathe`` is called between the parts of a
        layer; None: the pass may run as one call.
        """
        plain = None if breathe or not self._is_native(len(ids)) else self._plain_step(plan)
        if plain is not None and self.native_step is not None:
            return self.native_step.forward(ids, positions, plain, keep)
        rows = self._rows_for(len(ids), buffers or Buffers())
        torch.index_select(self._decoder.embedding.weight, 0, ids, out=rows.hidden)
        angles = self._table.at(positions)
        pending = None
        for layer in self._layers:
            self._run_layer(layer, rows, pending, angles, plan, breathe or (lambda: None))
            pending = rows.projected_matrix
        self._normalise(self._norm, rows, pending)
        return self._logits(rows.normed[keep])

    def _is_native(self, tokens: int) -> bool:
        """Whether all products of the layers are, so that one call has the same bits as the layers one by one."""
        return self.native_step is not None and is_native(tokens, self._decoder.embedding.weight.dtype)

    def _plain_step(self, plan: Plan) -> PlainStep | None:
        return plan.plain() if isinstance(plan, CpuPlan) else None

    def _run_layer(
        self,
        layer: _Layer,
        rows: LayerRows,
        pending: Any,
        angles: Angles,
        plan: Plan,
        breathe: Callable[[], None] = lambda: None,
    ) -> None:
        """From ``hidden`` and what is still to be added to it, to ``hidden`` and ``projected``."""
        parts, kernels = layer.parts, self._kernels
        self._normalise(layer.input_norm, rows, pending)
        matrix_product(rows.normed, parts.qkv, rows.qkv)
        if layer.head_norms is not None:
            for norm, heads in zip(layer.head_norms, (rows.q_matrix, rows.k_matrix), strict=True):
                kernels.rms_norm(heads, None, norm.weight, heads, norm.epsilon)
        if parts.has_rotary:
            kernels.rotate(angles.rotary, *rows.qk_place)
        breathe()
        mixed = plan.run(layer.number, rows.q, rows.k, rows.v, layer.options)
        breathe()
        matrix_product(mixed.flatten(1), parts.output, rows.projected)
        self._normalise(layer.post_norm, rows, rows.projected_matrix)
        breathe()
        matrix_product(rows.normed, parts.gate_up, rows.gate_up)
        breathe()
        kernels.silu_mul(rows.gate_up_matrix, rows.gated_matrix)
        matrix_product(rows.gated, parts.down, rows.projected)

    def _normalise(self, norm: _Norm, rows: LayerRows, pending: Any) -> None:
        self._kernels.rms_norm(rows.hidden_matrix, pending, norm.weight, rows.normed_matrix, norm.epsilon)

    def _logits(self, rows: Tensor) -> Tensor:
        head = self._decoder.head
        logits = rows.new_empty(len(rows), len(head.weight))
        matrix_product(rows, head, logits)
        return logits

    def _rows_for(self, tokens: int, buffers: Buffers) -> LayerRows:
        return buffers.rows_for(tokens, self._widths, self._decoder.embedding.weight.dtype, self._kernels)

    @torch.inference_mode()
    def compare(self, seen: Seen) -> None:
        """Raises NotPlain where a part does not compute what its modules did."""
        plan = LocalPlan()
        rows = self._rows_for(len(CHECK_POSITIONS), Buffers())
        angles = self._table.at(torch.tensor(CHECK_POSITIONS))
        require_same("the embedding", self._decoder.embedding.weight[seen.ids], seen.inputs[0])
        for layer, given, expected in zip(self._layers, seen.inputs, seen.outputs, strict=True):
            rows.hidden.copy_(given)
            self._run_layer(layer, rows, None, angles, plan)
            require_same(f"layer {layer.number}", rows.hidden + rows.projected, expected)
        for given, expected in zip(seen.inputs[1:], seen.outputs, strict=False):
            require_same("what lies between two layers", given, expected)
        rows.hidden.copy_(seen.outputs[-1])
        self._normalise(self._norm, rows, None)
        require_same("the head", self._logits(rows.normed), seen.logits)


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Any  # Matrix
    epsilon: float

    @classmethod
    def of(cls, module: nn.Module, kernels: Any) -> _Norm:
        weight = module.weight
        assert isinstance(weight, Tensor)
        return cls(native_matrix(kernels, weight.detach()[None]), float(module.variance_epsilon))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Layer:
    number: int
    parts: DecoderLayer
    widths: Widths
    options: LayerOptions
    input_norm: _Norm
    post_norm: _Norm
    head_norms: tuple[_Norm, ...] | None

    @classmethod
    def of(cls, parts: DecoderLayer, number: int, options: LayerOptions, layout: KVLayout, kernels: Any) -> _Layer:
        group = layout.groups[layout.places[number].group]
        columns, inputs = parts.qkv.weight.shape
        return cls(
            number=number,
            parts=parts,
            widths=Widths(
                hidden=inputs,
                query_heads=columns // group.head_dim - 2 * group.kv_heads,
                kv_heads=group.kv_heads,
                head_dim=group.head_dim,
                gated=parts.down.weight.shape[1],
            ),
            options=options,
            input_norm=_Norm.of(parts.input_norm, kernels),
            post_norm=_Norm.of(parts.post_norm, kernels),
            head_norms=tuple(_Norm.of(norm, kernels) for norm in parts.head_norms) if parts.head_norms else None,
        )


def _checked(model: PreTrainedModel, decoder: Decoder, layout: KVLayout, kernels: Any) -> FusedDecoder | str:
    try:
        seen = watch(model, decoder, layout)
        made = FusedDecoder(model, decoder, layout, seen.options, kernels)
        made.compare(seen)
    except NotPlain as error:
        return str(error)
    return made
