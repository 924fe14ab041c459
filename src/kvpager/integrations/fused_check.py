"""One pass of a model's own modules over a few tokens, watched: what the fused layers have to compute as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kvpager.attention.backend import DEFAULT_OPTIONS, LayerOptions
from kvpager.integrations.attention_function import PackedCall, attending
from kvpager.integrations.decoder_layers import Decoder, NotPlain
from kvpager.memory.layout import KVLayout

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHECK_POSITIONS = (0, 1, 2, 3, 4, 0, 1, 30)

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}  # of a number, and of the mean number


@dataclass(frozen=True, slots=True)
class Seen:
    """One pass of the model's own modules over T tokens, and what each layer asked of attention."""

    ids: Tensor  # [T]
    inputs: list[Tensor]  # [T, hidden] of each layer
    outputs: list[Tensor]
    logits: Tensor  # [T, vocab]
    options: list[LayerOptions]


class LocalPlan:
    """Stands for attention: mixes each token's own q, k and v, so that a mistake in one of them shows."""

    def __init__(self) -> None:
        self.options: dict[int, LayerOptions] = {}

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: LayerOptions = DEFAULT_OPTIONS) -> Tensor:
        self.options[layer] = options
        group = q.shape[1] // k.shape[1]
        return q * 0.25 + k.repeat_interleave(group, dim=1) * 0.5 + v.repeat_interleave(group, dim=1)


@torch.inference_mode()
def watch(model: PreTrainedModel, decoder: Decoder, layout: KVLayout) -> Seen:
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...], found: Tensor) -> None:
        inputs.append(given[0][0].clone())
        outputs.append(found[0].clone())

    plan, positions = LocalPlan(), torch.tensor(CHECK_POSITIONS)
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
    return Seen(ids, inputs, outputs, logits, [plan.options[number] for number in range(len(decoder.layers))])


def require_same(name: str, found: Tensor, expected: Tensor) -> None:
    """Raises NotPlain where they differ by more than roundings explain."""
    tolerance = _TOLERANCE[found.dtype]
    error = (found.float() - expected.float()).abs()
    magnitude = expected.float().abs()
    if not (error <= tolerance * (magnitude + magnitude.mean())).all():
        raise NotPlain(f"{name} computes something else: the largest difference is {float(error.max()):.2g}")
