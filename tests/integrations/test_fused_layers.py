"""Fused layers against the model's own modules: the same logits, the same weights, and nothing left behind."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama

from kvpager import native
from kvpager.attention.backend import DEFAULT_OPTIONS, LayerOptions
from kvpager.engine import Engine, Sampling
from kvpager.integrations.attention_function import PackedCall, attending, paged_attention
from kvpager.integrations.decoder_layers import FAMILIES as FUSED
from kvpager.integrations.fused_layers import FusedDecoder, fused
from kvpager.integrations.layer_buffers import Buffers
from kvpager.integrations.model_layout import layout_for
from tests.families import FAMILIES, VOCABULARY
from tests.tiny_model import tiny_model

pytestmark = pytest.mark.skipif(native.module() is None, reason=f"no native kernels: {native.why_not()}")

PLAIN = [name for name in FAMILIES if FAMILIES[name].model().config.model_type in FUSED]
LENGTHS = [1, 5, 40]


class CausalMean:
    """Stands for attention: each query head sees the mean of all values up to its token, weighed by its own q and k."""

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: LayerOptions = DEFAULT_OPTIONS) -> Tensor:
        group = q.shape[1] // k.shape[1]
        count = torch.arange(1, len(q) + 1)[:, None, None]
        mean = (v.float().cumsum(0) / count).repeat_interleave(group, dim=1)
        score = (q.float() * k.float().repeat_interleave(group, dim=1)).mean(-1, keepdim=True)
        return (mean * torch.sigmoid(score)).to(q.dtype)


@contextmanager
def fused_model(model: PreTrainedModel) -> Iterator[tuple[Any, FusedDecoder | str]]:
    layout = layout_for(model.config, dtype=str(model.dtype).removeprefix("torch."))
    with paged_attention(model), fused(model, layout) as decoder:
        yield layout, decoder


def both(model: PreTrainedModel, tokens: int) -> tuple[Tensor, Tensor]:
    """Logits by the fused layers and by the modules."""
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(VOCABULARY, (tokens,), generator=generator)
    positions = torch.randint(200, (tokens,), generator=generator)
    with fused_model(model) as (layout, decoder):
        assert isinstance(decoder, FusedDecoder), decoder
        assert decoder.is_current()
        found = decoder.forward(ids, positions, CausalMean(), torch.arange(tokens))
        with torch.inference_mode(), attending(PackedCall(layout, CausalMean())):
            expected = model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[0]
    return found, expected


class Interrupted(CausalMean):
    """In the middle of a layer, ``other`` happens."""

    def __init__(self, other: Callable[[], object]) -> None:
        self.other = other

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: LayerOptions = DEFAULT_OPTIONS) -> Tensor:
        found = super().run(layer, q, k, v, options)
        self.other()
        return found


def test_two_passes_under_way_at_once_do_not_touch_each_other() -> None:
    ids, keep = torch.arange(5), torch.arange(5)
    with fused_model(tiny_model()) as (_, decoder):
        assert isinstance(decoder, FusedDecoder), decoder
        first, second, breaths = Buffers(), Buffers(), []

        def forward(ids: Tensor, plan: CausalMean, buffers: Buffers) -> Tensor:
            return decoder.forward(ids, torch.arange(5), plan, keep, buffers, lambda: breaths.append(1))

        alone = forward(ids, CausalMean(), first)
        assert len(breaths) == 4 * 2  # between the parts of both layers
        for between, same in ((second, True), (first, False)):  # sharing buffers would not do
            plan = Interrupted(lambda between=between: forward(ids + 7, CausalMean(), between))  # type: ignore[misc]
            assert torch.equal(forward(ids, plan, first), alone) == same


def test_some_families_are_fused() -> None:
    assert {FAMILIES[name].model().config.model_type for name in PLAIN} == set(FUSED)


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("name", PLAIN)
def test_logits_are_those_of_the_modules_in_fp32(name: str, tokens: int) -> None:
    found, expected = both(FAMILIES[name].model(), tokens)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_logits_have_nearly_always_equal_bits_in_half_precision(name: str, dtype: torch.dtype) -> None:
    """All of them where the matrix products have equal bits whatever their number of columns."""
    found, expected = both(FAMILIES[name].model().to(dtype), 5)
    assert found.dtype == dtype
    assert (found == expected).float().mean() > 0.9
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02 * float(expected.float().abs().max()))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in PLAIN])
def test_other_families_run_as_they_are(name: str) -> None:
    with fused_model(FAMILIES[name].model()) as (_, decoder):
        assert isinstance(decoder, str)
        assert "computes something else" in decoder or "compute something else" in decoder


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_weights_keep_their_values_and_get_storage_of_their_own_again(name: str) -> None:
    model = FAMILIES[name].model()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    size = sum(each.nbytes for each in parameters.values())
    with fused_model(model) as (_, decoder):
        assert isinstance(decoder, FusedDecoder)
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in parameters.values()}
        assert len(storages) < len(parameters)
        assert sum(storages.values()) == size  # nothing is held twice
        for key, value in model.state_dict().items():
            assert torch.equal(value, before[key])
    assert dict(model.named_parameters()).keys() == parameters.keys()
    for key, each in model.named_parameters():
        assert each is parameters[key]
        assert torch.equal(each, before[key])
        assert each.untyped_storage().nbytes() == each.nbytes
    loss = model(torch.arange(5)[None]).logits.square().mean()
    loss.backward()
    assert all(each.grad is not None for each in model.parameters())


def test_weights_changed_in_place_count_at_once() -> None:
    model = tiny_model()
    ids, keep = torch.arange(7), torch.arange(7)
    with fused_model(model) as (layout, decoder):
        assert isinstance(decoder, FusedDecoder)
        first = decoder.forward(ids, ids, CausalMean(), keep).clone()
        model.load_state_dict(tiny_model(seed=1).state_dict())
        found = decoder.forward(ids, ids, CausalMean(), keep)
        with torch.inference_mode(), attending(PackedCall(layout, CausalMean())):
            expected = model(input_ids=ids[None], position_ids=ids[None], use_cache=False).logits[0]
    assert not torch.allclose(found, first)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_the_engine_sees_weights_that_were_replaced() -> None:
    model, other = tiny_model(), tiny_model(seed=1)
    prompt, ask = [1, 2, 3, 4], Sampling(max_tokens=8)
    with Engine(other, num_blocks=32) as engine:
        expected = next(iter(engine.generate([prompt], ask))).token_ids
    with Engine(model, num_blocks=32) as engine:
        before = next(iter(engine.generate([prompt], ask))).token_ids
        for parameter, new in zip(model.parameters(), other.parameters(), strict=True):
            parameter.data = new.data.clone()
        engine.weights_changed()
        assert isinstance(engine.runner.fused, FusedDecoder)
        found = next(iter(engine.generate([prompt], ask))).token_ids
    assert found == expected != before


def test_hooks_are_run() -> None:
    """A hook that somebody adds while the engine runs sees every layer, and may change what it returns."""
    model = tiny_model()
    prompt, ask = [1, 2, 3, 4], Sampling(max_tokens=4)
    with Engine(model, num_blocks=32) as engine:
        expected = next(iter(engine.generate([prompt], ask))).token_ids
        assert isinstance(engine.runner.fused, FusedDecoder)
        calls: list[nn.Module] = []
        hook = model.model.layers[1].mlp.register_forward_hook(lambda module, *_: calls.append(module))
        assert next(iter(engine.generate([prompt], ask))).token_ids == expected
        assert len(calls) == 4
        hook.remove()
        assert next(iter(engine.generate([prompt], ask))).token_ids == expected
        assert len(calls) == 4


class Doubled(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) * 2


def _hook(model: PreTrainedModel) -> None:
    model.model.layers[1].mlp.register_forward_pre_hook(lambda *_: None)


def _own_forward(model: PreTrainedModel) -> None:
    layer = model.model.layers[0]
    layer.forward = layer.forward


def _subclass(model: PreTrainedModel) -> None:
    model.model.layers[1].self_attn.o_proj.__class__ = Doubled


def _activation(model: PreTrainedModel) -> None:
    model.model.layers[1].mlp.act_fn = nn.GELU()


def _one_bias(model: PreTrainedModel) -> None:
    model.model.layers[1].self_attn.k_proj.bias = nn.Parameter(torch.zeros(32))


def _shared(model: PreTrainedModel) -> None:
    attention = model.model.layers[1].self_attn
    attention.v_proj.weight = attention.k_proj.weight


def _mixed_dtypes(model: PreTrainedModel) -> None:
    model.lm_head.to(torch.bfloat16)


def _no_rotary(model: PreTrainedModel) -> None:
    model.model.layers[1].self_attn.use_rope = False  # which Llama's code does not look at


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_hook, "hooks"),
        (_own_forward, "a forward of its own"),
        (_subclass, "a Linear is a Doubled"),
        (_activation, "the activation is GELU"),
        (_one_bias, "some have none"),
        (_shared, "share their weights"),
        (_mixed_dtypes, "one floating dtype"),
        (_no_rotary, "layer 1 computes something else"),
    ],
)
def test_a_model_that_is_not_plain_is_refused_with_a_reason(change: Any, reason: str) -> None:
    model = tiny_model()
    with fused_model(model) as (_, decoder):
        assert isinstance(decoder, FusedDecoder)  # the control
    change(model)
    before = {key: value.data_ptr() for key, value in model.named_parameters()}
    with fused_model(model) as (_, decoder):
        assert isinstance(decoder, str)
        assert reason in decoder
    if reason != "layer 1 computes something else":  # which was found by running it fused
        assert {key: value.data_ptr() for key, value in model.named_parameters()} == before


@pytest.mark.parametrize("multiplied", ["layer", "embedding", "head"])
def test_code_that_computes_something_else_is_found_by_its_numbers(
    multiplied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = {
        "layer": (modeling_llama.LlamaMLP, "forward"),
        "embedding": (nn.Embedding, "forward"),
        "head": (modeling_llama.LlamaForCausalLM, "forward"),
    }[multiplied]
    original = getattr(owner, name)

    def changed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        if multiplied == "head":
            found.logits = found.logits / 1.01
            return found
        return found * 1.01

    monkeypatch.setattr(owner, name, changed)
    with fused_model(tiny_model()) as (_, decoder):
        assert isinstance(decoder, str)
        assert f"{multiplied}" in decoder
        assert "computes something else" in decoder


def test_the_option_switches_it_off() -> None:
    with Engine(tiny_model(), num_blocks=32, fused_layers=False) as engine:
        assert engine.runner.fused == "switched off"
        own = [done.token_ids for done in engine.generate([[1, 2, 3]], Sampling(max_tokens=8))]
    with Engine(tiny_model(), num_blocks=32) as engine:
        assert isinstance(engine.runner.fused, FusedDecoder)
        assert [done.token_ids for done in engine.generate([[1, 2, 3]], Sampling(max_tokens=8))] == own


def test_without_native_kernels_the_modules_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "module", lambda: None)
    monkeypatch.setattr(native, "why_not", lambda: "not built")
    with fused_model(tiny_model()) as (_, decoder):
        assert decoder == "no native kernels: not built"


def test_a_copy_of_a_fused_model_is_a_model() -> None:
    model = tiny_model()
    with fused_model(model) as (_, decoder):
        assert isinstance(decoder, FusedDecoder)
        twin = copy.deepcopy(model)
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_angles_of_far_positions_are_those_of_the_model() -> None:
    model = tiny_model(max_position_embeddings=1 << 20).bfloat16()
    ids = torch.arange(6)
    with fused_model(model) as (layout, decoder):
        assert isinstance(decoder, FusedDecoder)
        for positions in ([0, 1, 1023, 1024, 1025, 3000], [5, 4, 3, 70_000, 1, 2**19]):
            places = torch.tensor(positions)
            found = decoder.forward(ids, places, CausalMean(), ids)
            with torch.inference_mode(), attending(PackedCall(layout, CausalMean())):
                expected = model(input_ids=ids[None], position_ids=places[None], use_cache=False).logits[0]
            assert (found == expected).float().mean() > 0.9
            torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02 * float(expected.float().abs().max()))
