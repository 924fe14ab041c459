"""The layers of a plain Llama-like decoder with native kernels: nothing between matrix products but one call each.

    normed    = rms_norm(hidden += projected)   one call; `hidden` keeps the sum
    qkv       = normed @ [q | k | v]            rotary turns its q and k in place; attention reads them where they lie
    projected = attention @ o
    normed    = rms_norm(hidden += projected)
    gated     = silu_mul(normed @ [gate | up])
    projected = gated @ down                    added to `hidden` by the next layer's norm

The same roundings in the same order as the modules: where the matrix products have equal bits, so has everything else.
All layers of a pass use the same buffers, and so may the next pass; two that are under way at once must not. Before a
model's layers are handed out fused, each part is compared with the modules it stands for, on a few tokens. Knows no
requests and no cache.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import contains
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module
from transformers import PreTrainedModel

from kvpager import native
from kvpager.attention.backend import DEFAULT_OPTIONS, LayerOptions, Plan
from kvpager.integrations.attention_function import PackedCall, attending
from kvpager.integrations.decoder_layers import Decoder, DecoderLayer, NotPlain, Projection, recognise
from kvpager.memory.layout import KVLayout

_CHECK_POSITIONS = (0, 1, 2, 3, 4, 0, 1, 30)
_FIRST_POSITIONS = 1024
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}  # of a number, and of the mean number


@contextmanager
def fused(model: PreTrainedModel, layout: KVLayout) -> Iterator["FusedDecoder | str"]:
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


def matrix_product(rows: Tensor, projection: Projection, out: Tensor) -> None:
    """out [T, outputs] = rows [T, inputs] times the weights. Every product of a layer is computed here."""
    if projection.bias is None:
        torch.mm(rows, projection.weight, out=out)
    else:
        torch.addmm(projection.bias, rows, projection.weight, out=out)


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
        self._norm = _Norm.of(decoder.norm, kernels)
        self._cosines = self._sines = torch.empty(0, 0)  # [positions, head_dim]
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
        buffers: "Buffers | None" = None,
        breathe: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """Logits [len(keep), vocab] of the packed tokens ``ids`` [T] at ``positions`` [T], at the indices ``keep``.

        ``buffers``: of this pass alone until it returns; None: new ones. ``breathe`` is called between the parts of a
        layer.
        """
        rows = self._rows_for(len(ids), buffers or Buffers())
        torch.index_select(self._decoder.embedding.weight, 0, ids, out=rows.hidden)
        angles = self._angles(positions)
        pending = None
        for layer in self._layers:
            self._run_layer(layer, rows, pending, angles, plan, breathe)
            pending = rows.projected_matrix
        self._normalise(self._norm, rows, pending)
        return functional.linear(rows.normed[keep], self._decoder.head.weight)

    def _run_layer(
        self,
        layer: "_Layer",
        rows: "_Rows",
        pending: Any,
        angles: "_Angles",
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

    def _normalise(self, norm: "_Norm", rows: "_Rows", pending: Any) -> None:
        self._kernels.rms_norm(rows.hidden_matrix, pending, norm.weight, rows.normed_matrix, norm.epsilon)

    def _angles(self, positions: Tensor) -> "_Angles":
        """cos and sin of each position, from a table that grows with the highest one: a position's angles never change
        (model_layout.py refuses models where they do), and computing them takes longer than a layer's norms."""
        needed = int(positions.max()) + 1 if len(positions) else 0
        if needed > len(self._cosines):
            weight = self._decoder.embedding.weight
            some = torch.arange(max(_FIRST_POSITIONS, 1 << (needed - 1).bit_length()))
            self._cosines, self._sines = (table[0] for table in self._decoder.rotary(weight[None, :1], some[None]))
        cos, sin = (torch.index_select(table, 0, positions) for table in (self._cosines, self._sines))
        rotary = self._kernels.Rotary(
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            token_stride=cos.stride(0),
            tokens=cos.shape[0],
            rotary_dim=cos.shape[1],
            dtype=_dtype_name(cos),
        )
        return _Angles((cos, sin), rotary)

    def _rows_for(self, tokens: int, buffers: "Buffers") -> "_Rows":
        """Those of the last pass where it had as many tokens."""
        if buffers.rows is None or len(buffers.rows.hidden) != tokens:
            dtype = self._decoder.embedding.weight.dtype
            buffers.rows = _Rows.of(tokens, self._layers[0].widths, dtype, self._kernels)
        return buffers.rows

    @torch.inference_mode()
    def compare(self, seen: "_Seen") -> None:
        """Raises NotPlain where a part does not compute what its modules did."""
        plan = _LocalPlan()
        rows = self._rows_for(len(_CHECK_POSITIONS), Buffers())
        angles = self._angles(torch.tensor(_CHECK_POSITIONS))
        _compare("the embedding", self._decoder.embedding.weight[seen.ids], seen.inputs[0])
        for layer, given, expected in zip(self._layers, seen.inputs, seen.outputs, strict=True):
            rows.hidden.copy_(given)
            self._run_layer(layer, rows, None, angles, plan)
            _compare(f"layer {layer.number}", rows.hidden + rows.projected, expected)
        for given, expected in zip(seen.inputs[1:], seen.outputs, strict=False):
            _compare("what lies between two layers", given, expected)
        rows.hidden.copy_(seen.outputs[-1])
        self._normalise(self._norm, rows, None)
        _compare("the head", functional.linear(rows.normed, self._decoder.head.weight), seen.logits)


# -- what stays the same from step to step ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Widths:
    """Columns of the buffers, and how q, k and v lie in theirs."""

    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    gated: int


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Any  # Matrix
    epsilon: float

    @classmethod
    def of(cls, module: nn.Module, kernels: Any) -> "_Norm":
        weight = module.weight
        assert isinstance(weight, Tensor)
        return cls(_matrix(kernels, weight.detach()[None]), float(module.variance_epsilon))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Layer:
    number: int
    parts: DecoderLayer
    widths: _Widths
    options: LayerOptions
    input_norm: _Norm
    post_norm: _Norm
    head_norms: tuple[_Norm, ...] | None

    @classmethod
    def of(cls, parts: DecoderLayer, number: int, options: LayerOptions, layout: KVLayout, kernels: Any) -> "_Layer":
        group = layout.groups[layout.places[number].group]
        inputs, columns = parts.qkv.weight.shape
        return cls(
            number=number,
            parts=parts,
            widths=_Widths(
                hidden=inputs,
                query_heads=columns // group.head_dim - 2 * group.kv_heads,
                kv_heads=group.kv_heads,
                head_dim=group.head_dim,
                gated=parts.down.weight.shape[0],
            ),
            options=options,
            input_norm=_Norm.of(parts.input_norm, kernels),
            post_norm=_Norm.of(parts.post_norm, kernels),
            head_norms=tuple(_Norm.of(norm, kernels) for norm in parts.head_norms) if parts.head_norms else None,
        )


@dataclass(frozen=True, slots=True)
class _Angles:
    """cos and sin of each token's position, [T, head_dim]; the tensors own the memory of ``rotary``."""

    tensors: tuple[Tensor, Tensor]
    rotary: Any


@dataclass(slots=True)
class Buffers:
    """What passes that follow one another may share, of one decoder."""

    rows: "_Rows | None" = None


@dataclass(frozen=True, slots=True)
class _Rows:
    """The buffers of a step with T tokens, and the same memory as the kernels take it."""

    hidden: Tensor  # [T, hidden] the residual stream
    normed: Tensor  # [T, hidden]
    qkv: Tensor  # [T, (query_heads + 2 * kv_heads) * head_dim]
    q: Tensor  # [T, query_heads, head_dim], a view of qkv, as are k and v
    k: Tensor
    v: Tensor
    projected: Tensor  # [T, hidden] what a block adds to the residual stream
    gate_up: Tensor  # [T, 2 * gated]
    gated: Tensor  # [T, gated]
    hidden_matrix: Any
    normed_matrix: Any
    q_matrix: Any
    k_matrix: Any
    qk_place: tuple[Any, ...]  # all heads of q and k, as rotate() takes input and output: these are the same
    projected_matrix: Any
    gate_up_matrix: Any
    gated_matrix: Any

    @classmethod
    def of(cls, tokens: int, widths: _Widths, dtype: torch.dtype, kernels: Any) -> "_Rows":
        matrix = partial(_matrix, kernels)
        hidden, normed, projected = (torch.empty(tokens, widths.hidden, dtype=dtype) for _ in range(3))
        gated, gate_up = (torch.empty(tokens, factor * widths.gated, dtype=dtype) for factor in (1, 2))
        heads = [widths.query_heads, widths.kv_heads, widths.kv_heads]
        qkv = torch.empty(tokens, sum(heads) * widths.head_dim, dtype=dtype)
        q, k, v = torch.split(qkv.view(tokens, sum(heads), widths.head_dim), heads, dim=1)
        place = (qkv.data_ptr(), qkv.stride(0), widths.head_dim)
        of_keys = sum(heads[:1]) * widths.head_dim
        of_values = sum(heads[:2]) * widths.head_dim
        return cls(
            hidden=hidden,
            normed=normed,
            qkv=qkv,
            q=q,
            k=k,
            v=v,
            projected=projected,
            gate_up=gate_up,
            gated=gated,
            hidden_matrix=matrix(hidden),
            normed_matrix=matrix(normed),
            q_matrix=matrix(qkv[:, :of_keys]),
            k_matrix=matrix(qkv[:, of_keys:of_values]),
            qk_place=(heads[0] + heads[1], widths.head_dim, *place, *place, _dtype_name(qkv)),
            projected_matrix=matrix(projected),
            gate_up_matrix=matrix(gate_up),
            gated_matrix=matrix(gated),
        )


def _matrix(kernels: Any, rows: Tensor) -> Any:
    """The same memory as a native Matrix; the caller keeps the tensor."""
    assert rows.stride(1) == 1
    return kernels.Matrix(
        address=rows.data_ptr(),
        rows=rows.shape[0],
        columns=rows.shape[1],
        row_stride=rows.stride(0),
        dtype=_dtype_name(rows),
    )


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# -- the comparison with the model's own modules ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    """One pass of the model's own modules over T tokens, and what each layer asked of attention."""

    ids: Tensor  # [T]
    inputs: list[Tensor]  # [T, hidden] of each layer
    outputs: list[Tensor]
    logits: Tensor  # [T, vocab]
    options: list[LayerOptions]


class _LocalPlan:
    """Stands for attention: mixes each token's own q, k and v, so that a mistake in one of them shows."""

    def __init__(self) -> None:
        self.options: dict[int, LayerOptions] = {}

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: LayerOptions = DEFAULT_OPTIONS) -> Tensor:
        self.options[layer] = options
        group = q.shape[1] // k.shape[1]
        return q * 0.25 + k.repeat_interleave(group, dim=1) * 0.5 + v.repeat_interleave(group, dim=1)


def _checked(model: PreTrainedModel, decoder: Decoder, layout: KVLayout, kernels: Any) -> FusedDecoder | str:
    try:
        seen = _watch(model, decoder, layout)
        made = FusedDecoder(model, decoder, layout, seen.options, kernels)
        made.compare(seen)
    except NotPlain as error:
        return str(error)
    return made


@torch.inference_mode()
def _watch(model: PreTrainedModel, decoder: Decoder, layout: KVLayout) -> _Seen:
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...], found: Tensor) -> None:
        inputs.append(given[0][0].clone())
        outputs.append(found[0].clone())

    plan, positions = _LocalPlan(), torch.tensor(_CHECK_POSITIONS)
    ids = torch.arange(len(positions)) * 7 % decoder.embedding.num_embeddings
    hooks = [layer.module.register_forward_hook(keep) for layer in decoder.layers]
    try:
        with attending(PackedCall(layout, plan)):
            logits = model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[0]
    finally:
        for hook in hooks:
            hook.remove()
    if len(inputs) != len(decoder.layers) or len(plan.options) != len(decoder.layers):
        raise NotPlain("the model does not run each of its layers once")
    return _Seen(ids, inputs, outputs, logits, [plan.options[number] for number in range(len(decoder.layers))])


def _compare(name: str, found: Tensor, expected: Tensor) -> None:
    tolerance = _TOLERANCE[found.dtype]
    error = (found.float() - expected.float()).abs()
    magnitude = expected.float().abs()
    if not (error <= tolerance * (magnitude + magnitude.mean())).all():
        raise NotPlain(f"{name} computes something else: the largest difference is {float(error.max()):.2g}")
