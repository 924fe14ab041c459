"""Recognises decoders whose layers are the plain Llama computation, and lays their weights out for it.

    h += attention(norm(h))      q, k, v = one product with the weights q|k|v; perhaps a norm of each head; rotary
    h += mlp(norm(h))            down(silu(gate) * up), gate and up from one product with the weights gate|up

Which families compute exactly this was read in their code; that this very model does is checked by its structure here
and by its numbers in fused_layers.py. Whatever is not recognised (adapters, quantised or hooked modules, other
activations) is refused with a reason and runs as it is. Knows no kernels and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_ACTIVATIONS = ("SiLU", "SiLUActivation")


class NotPlain(Exception):
    """Says what a model has that the plain computation does not."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Linear maps of the same input, computed as one. ``weight`` [out, in] and ``bias`` [out] of all of them, in order;
    the parameters of the modules are views of these."""

    weight: Tensor
    bias: Tensor | None
    modules: tuple[nn.Linear, ...]

    def separate(self) -> None:
        """Gives the modules parameters of their own again."""
        for parameter in _parameters(self.modules) if len(self.modules) > 1 else ():
            parameter.data = parameter.data.clone()


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The parts of one layer. ``head_norms``: of query and key heads, where the family has them."""

    module: nn.Module
    input_norm: nn.Module
    qkv: Projection
    head_norms: tuple[nn.Module, nn.Module] | None
    has_rotary: bool
    output: Projection
    post_norm: nn.Module
    gate_up: Projection
    down: Projection

    def separate(self) -> None:
        self.qkv.separate()
        self.gate_up.separate()


@dataclass(frozen=True, slots=True)
class Decoder:
    embedding: nn.Embedding
    rotary: nn.Module
    layers: tuple[DecoderLayer, ...]
    norm: nn.Module
    head: Projection

    def separate(self) -> None:
        for layer in self.layers:
            layer.separate()


def recognise(model: PreTrainedModel) -> Decoder:
    """Joins the weights of ``model``, layer by layer, and lets go of the file they were read from, so that they are not
    held twice. Raises NotPlain, with nothing changed."""
    if model.config.model_type not in FAMILIES:
        raise NotPlain(f"layers of {model.config.model_type!r} compute something else")
    for module in model.modules():
        if not is_untouched(module):
            raise NotPlain(f"{type(module).__name__} has hooks or a forward of its own")
    parameters = list(model.parameters())
    if any(each.device.type != "cpu" for each in parameters):
        raise NotPlain("the model is not on the CPU")
    if len({each.dtype for each in parameters}) != 1 or parameters[0].dtype not in DTYPES:
        raise NotPlain("the weights are not all of one floating dtype")
    try:
        base, head = model.model, model.lm_head
        _check_type(base.embed_tokens, "Embedding")
        _check_type(head, "Linear")
        _check_type(base.norm, "RMSNorm")
        parts = [_parts(layer) for layer in base.layers]
        rotary = base.rotary_emb
    except AttributeError as error:
        raise NotPlain(f"a part is missing: {error}") from None
    if head.bias is not None:
        raise NotPlain("the head has a bias")
    joined = {id(each) for part in parts for each in _parameters(part.qkv + part.gate_up)}
    _let_go_of_files([each for each in parameters if id(each) not in joined])
    return Decoder(base.embed_tokens, rotary, tuple(each.join() for each in parts), base.norm, _join((head,)))


def is_untouched(module: nn.Module) -> bool:
    """Calling the module runs the forward of its class, and nothing else."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


@dataclass(frozen=True, slots=True)
class _Parts:
    module: nn.Module
    norms: tuple[nn.Module, nn.Module]
    head_norms: tuple[nn.Module, nn.Module] | None
    has_rotary: bool
    qkv: tuple[nn.Linear, ...]
    output: tuple[nn.Linear, ...]
    gate_up: tuple[nn.Linear, ...]
    down: tuple[nn.Linear, ...]

    def join(self) -> DecoderLayer:
        return DecoderLayer(
            module=self.module,
            input_norm=self.norms[0],
            qkv=_join(self.qkv),
            head_norms=self.head_norms,
            has_rotary=self.has_rotary,
            output=_join(self.output),
            post_norm=self.norms[1],
            gate_up=_join(self.gate_up),
            down=_join(self.down),
        )


def _parts(layer: nn.Module) -> _Parts:
    attention, mlp = layer.self_attn, layer.mlp
    assert isinstance(attention, nn.Module)
    assert isinstance(mlp, nn.Module)
    if type(mlp.act_fn).__name__ not in _ACTIVATIONS:
        raise NotPlain(f"the activation is {type(mlp.act_fn).__name__}")
    head_norms = None
    if hasattr(attention, "q_norm"):
        head_norms = (_check_type(attention.q_norm, "RMSNorm"), _check_type(attention.k_norm, "RMSNorm"))
    return _Parts(
        module=layer,
        norms=(
            _check_type(layer.input_layernorm, "RMSNorm"),
            _check_type(layer.post_attention_layernorm, "RMSNorm"),
        ),
        head_norms=head_norms,
        has_rotary=bool(getattr(attention, "use_rope", True)),
        qkv=_linears(attention, "q_proj", "k_proj", "v_proj"),
        output=_linears(attention, "o_proj"),
        gate_up=_linears(mlp, "gate_proj", "up_proj"),
        down=_linears(mlp, "down_proj"),
    )


def _linears(owner: nn.Module, *names: str) -> tuple[nn.Linear, ...]:
    modules = tuple(getattr(owner, name) for name in names)
    for module in modules:
        _check_type(module, "Linear")
    if len({module.bias is None for module in modules}) != 1:
        raise NotPlain(f"some of {', '.join(names)} have a bias, some have none")
    if len({id(each) for each in _parameters(modules)}) != len(list(_parameters(modules))):
        raise NotPlain(f"some of {', '.join(names)} share their weights")
    return modules


def _check_type(module: object, name: str) -> nn.Module:
    """``module`` is torch's own class of that name, or the RMSNorm of a family; subclasses may compute anything."""
    kind = type(module)
    is_right = kind.__name__.endswith(name) and kind.__module__.startswith(
        ("torch.nn.modules.", "transformers.models.", "kvpager.models.plain_llama")
    )
    if not is_right or not isinstance(module, nn.Module):
        raise NotPlain(f"a {name} is a {kind.__name__}")
    return module


def _parameters(modules: tuple[nn.Linear, ...]) -> Iterator[nn.Parameter]:
    for module in modules:
        yield from module.parameters()


def _let_go_of_files(parameters: list[nn.Parameter]) -> None:
    """Gives memory of their own to those that lie in a mapped file: all of it stays in memory, beside the copies of
    what was joined, until nothing lies in it."""
    for each in parameters:
        if not (storage := each.untyped_storage()).resizable() and not storage.is_shared():  # not torch allocated it
            each.data = each.data.clone()


def _join(modules: tuple[nn.Linear, ...]) -> Projection:
    weight, bias = (_join_parameters([getattr(module, name) for module in modules]) for name in ("weight", "bias"))
    assert weight is not None
    return Projection(weight, bias, modules)


def _join_parameters(parameters: list[nn.Parameter | None]) -> Tensor | None:
    present = [each for each in parameters if each is not None]
    if len(present) < 2:
        return present[0].data if present else None
    joined = torch.cat([each.data for each in present])
    for parameter, rows in zip(present, torch.split(joined, [len(each) for each in present]), strict=True):
        parameter.data = rows
    return joined
