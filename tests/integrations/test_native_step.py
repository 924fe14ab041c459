"""A pass as one native call against the layers one by one: with the same products, the same bits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from kvpager import native
from kvpager.integrations import fused_layers
from kvpager.integrations.attention_function import paged_attention
from kvpager.integrations.decoder_layers import Projection
from kvpager.integrations.fused_layers import FusedDecoder, fused
from kvpager.integrations.model_layout import layout_for
from kvpager.integrations.native_matrix import native_matrix
from kvpager.integrations.native_step import NativeStep
from tests.attention.paged_out import World
from tests.families import FAMILIES, VOCABULARY, Family

if native.module() is None:
    pytest.skip(f"no native kernels: {native.why_not()}", allow_module_level=True)

from kvpager.attention.cpu import CpuBackend, CpuPlan

KERNELS = native.module()
PLAIN = ["llama", "qwen2", "qwen3", "qwen3-windows", "mistral", "smollm3"]
BATCHES = {  # lengths with the new tokens, new tokens
    "one": ([30], [1]),
    "two": ([1, 40], [1, 1]),
    "decode-33": ([3 + 2 * i for i in range(33)], [1] * 33),
    "prefill": ([70], [70]),
    "mixed": ([50, 40, 41, 9], [37, 1, 2, 9]),
    "many": ([230, 12], [217, 1]),
}


def product(rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    given = [None if each is None else native_matrix(KERNELS, each) for each in (bias, out)]
    KERNELS.product(native_matrix(KERNELS, rows), native_matrix(KERNELS, weight), *given)


def native_product(rows: Tensor, projection: Projection, out: Tensor) -> None:
    bias = projection.bias
    product(rows, projection.weight, None if bias is None else bias[None], out)


@pytest.fixture(autouse=True)
def same_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layers, "matrix_product", native_product)


@contextmanager
def decoder_of(name: str, dtype: torch.dtype, kv_dtype: str | None = None) -> Iterator[tuple[Any, FusedDecoder]]:
    with decoder_in(FAMILIES[name].model().to(dtype), dtype, kv_dtype) as found:
        yield found


@contextmanager
def decoder_in(model: Any, dtype: torch.dtype, kv_dtype: str | None = None) -> Iterator[tuple[Any, FusedDecoder]]:
    layout = layout_for(model.config, dtype=kv_dtype or str(dtype).removeprefix("torch."), page_size=4)
    with paged_attention(model), fused(model, layout) as decoder:
        assert isinstance(decoder, FusedDecoder), decoder
        yield layout, decoder


class Case:
    """One batch over a pool of its own; the same one each time it is made."""

    def __init__(self, layout: Any, lengths: list[int], queries: list[int], seed: int = 0) -> None:
        self.world = World(layout, lengths, queries, query_heads=4, seed=seed)
        self.batch = self.world.batch()
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(VOCABULARY, (self.batch.num_tokens,), generator=generator)
        self.positions = torch.from_numpy(self.batch.positions())
        self.plan = CpuBackend().plan(self.batch, self.world.arena)
        assert isinstance(self.plan, CpuPlan)

    def layers(self, decoder: FusedDecoder, keep: Tensor) -> Tensor:
        """One by one."""
        return decoder.forward(self.ids, self.positions, self.plan, keep, breathe=lambda: None)

    def whole(self, decoder: FusedDecoder, keep: Tensor, threads: int) -> Tensor:
        step, plain = decoder.native_step, self.plan.plain()
        assert step is not None
        assert plain is not None
        return step.forward(self.ids, self.positions, plain, keep, threads)

    def last(self) -> Tensor:
        return torch.from_numpy(self.batch.offsets()[1:] - 1)

    def pool(self) -> np.ndarray:
        return np.array(self.world.arena.blocks)


def check(decoder: FusedDecoder, layout: Any, lengths: list[int], queries: list[int], *threads: int) -> None:
    expected = Case(layout, lengths, queries)
    keep, before = expected.last(), expected.pool()
    logits = expected.layers(decoder, keep)
    assert (before != expected.pool()).any()  # something was written
    for count in threads:
        found = Case(layout, lengths, queries)
        assert torch.equal(found.whole(decoder, keep, count), logits)
        assert (found.pool() == expected.pool()).all()


@pytest.mark.parametrize("name", PLAIN)
def test_it_has_the_bits_of_the_layers_one_by_one(name: str) -> None:
    with decoder_of(name, torch.float32) as (layout, decoder):
        for batch in BATCHES.values():
            check(decoder, layout, *batch, 1, 2)


@pytest.mark.parametrize("name", ["qwen2", "qwen3-windows"])
def test_the_same_in_bf16(name: str) -> None:
    with decoder_of(name, torch.bfloat16) as (layout, decoder):
        for batch in BATCHES.values():
            check(decoder, layout, *batch, 1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_biases_everywhere(dtype: torch.dtype) -> None:
    model = Family(LlamaConfig, {"attention_bias": True, "mlp_bias": True}).model()
    biases = [each for name, each in model.named_parameters() if name.endswith("bias")]
    assert len(biases) == 7 * 4
    for bias in biases:
        torch.nn.init.normal_(bias, generator=torch.Generator().manual_seed(1))
    with decoder_in(model.to(dtype), dtype) as (layout, decoder):
        for batch in BATCHES.values():
            check(decoder, layout, *batch, 1, 2)


@pytest.mark.parametrize("kv_dtype", ["int8", "float8_e4m3"])
def test_quantized_pages(kv_dtype: str) -> None:
    with decoder_of("llama", torch.float32, kv_dtype) as (layout, decoder):
        check(decoder, layout, *BATCHES["mixed"], 1, 3)


def test_a_long_context_in_pieces() -> None:
    with decoder_of("llama", torch.float32) as (layout, decoder):
        check(decoder, layout, [4500, 7], [1, 1], 1, 2)


KEPT = [[], [48], [36], [5, 5, 0], [37, 48], [36, 38, 39], [*range(36)], [*range(49)], [*range(49), *range(49)]]


@pytest.mark.parametrize(
    ("name", "dtype", "kv_dtype"),
    [
        ("qwen2", torch.float32, None),
        ("qwen3", torch.bfloat16, None),
        ("qwen3-windows", torch.float32, None),
        ("llama", torch.float32, "int8"),
    ],
)
def test_any_rows_may_be_kept(name: str, dtype: torch.dtype, kv_dtype: str | None) -> None:
    with decoder_of(name, dtype, kv_dtype) as (layout, decoder):
        whole = Case(layout, *BATCHES["mixed"])  # rows 0-36 of one prompt, 37 and 38-39 of others, 40-48 the last
        everything = whole.layers(decoder, torch.arange(49))
        for keep in KEPT:
            for threads in (1, 2):
                found = Case(layout, *BATCHES["mixed"])
                logits = found.whole(decoder, torch.tensor(keep, dtype=torch.int64), threads)
                assert torch.equal(logits, everything[keep])
                assert (found.pool() == whole.pool()).all()


def test_a_kept_row_beside_a_long_context_that_is_not() -> None:
    with decoder_of("llama", torch.float32) as (layout, decoder):
        lengths, queries = [4500, 4100, 300], [1, 2, 290]  # the first two are cut over their contexts
        everything = Case(layout, lengths, queries).layers(decoder, torch.arange(293))
        for keep in ([2], [0, 292], [3, 150, 151]):
            found = Case(layout, lengths, queries).whole(decoder, torch.tensor(keep), 2)
            assert torch.equal(found, everything[keep])


def test_two_decoders_in_turns() -> None:
    with (
        decoder_of("qwen3", torch.bfloat16) as (layout, first),
        decoder_of("mistral", torch.float32) as (other_layout, second),
    ):
        for _ in range(2):
            check(first, layout, *BATCHES["mixed"], 2)
            check(second, other_layout, *BATCHES["two"], 1)


def test_the_decoder_uses_it_where_nobody_wants_to_breathe(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    original = NativeStep.forward
    monkeypatch.setattr(NativeStep, "forward", lambda *given: passes.append(1) or original(*given))
    with decoder_of("llama", torch.float32) as (layout, decoder):
        case = Case(layout, *BATCHES["two"])
        decoder.forward(case.ids, case.positions, case.plan, case.last())
        assert len(passes) == 1
        case.layers(decoder, case.last())
        assert len(passes) == 1


def test_weights_changed_in_place_count_at_once() -> None:
    with decoder_of("llama", torch.float32) as (layout, decoder):
        case = Case(layout, *BATCHES["two"])
        before = case.whole(decoder, case.last(), 1)
        with torch.no_grad():
            for each in decoder.native_step.borrowed[:9]:
                each.mul_(1.25)
        check(decoder, layout, *BATCHES["two"], 1)
        assert not torch.equal(Case(layout, *BATCHES["two"]).whole(decoder, case.last(), 1), before)


# -- what does not fit ------------------------------------------------------------------------------------------------


def weights(**change: Any) -> dict[str, Any]:
    shapes = {"qkv": (32, 8), "output": (8, 16), "gate_up": (24, 8), "down": (8, 12), "input_norm": (1, 8)}
    return {name: torch.zeros(shape) for name, shape in (shapes | {"post_norm": (1, 8)} | change).items()}


def step_of(tensors: dict[str, Tensor], **change: Any) -> Any:
    rest = {name: torch.zeros(shape) for name, shape in (("embedding", (5, 8)), ("head", (5, 8)), ("norm", (1, 8)))}
    rest |= {name: change.pop(name) for name in tuple(change) if isinstance(change[name], Tensor)}
    matrices = {name: native_matrix(KERNELS, each) for name, each in tensors.items()}
    layer = KERNELS.DecoderLayer(**matrices, input_epsilon=0, post_epsilon=0, has_rotary=True, scale=1)
    numbers = {"epsilon": 0.0, "query_heads": 4, "kv_heads": 2, "head_dim": 4, "layers": [layer], **change}
    step = KERNELS.DecoderStep(**{name: native_matrix(KERNELS, each) for name, each in rest.items()}, **numbers)
    return step, rest, tensors


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("layer 0: qkv: expected 32 x 8, not 31 x 8", {"qkv": (31, 8)}),
        ("layer 0: output: expected 8 x 16", {"output": (8, 15)}),
        ("layer 0: gate_up: expected 24 x 8", {"gate_up": (23, 8)}),
        ("layer 0: down: expected 8 x 12", {"down": (7, 12)}),
        ("layer 0: post_norm: expected 1 x 8", {"post_norm": (1, 9)}),
        ("layer 0: query_norm and key_norm go together", {"query_norm": (1, 4)}),
        ("layer 0: query_norm: expected 1 x 4", {"query_norm": (1, 3), "key_norm": (1, 4)}),
        ("layer 0: qkv_bias: expected 1 x 32", {"qkv_bias": (1, 31)}),
    ],
)
def test_weights_that_do_not_fit_are_named(reason: str, change: dict[str, Any]) -> None:
    step_of(weights())
    with pytest.raises(ValueError, match=f"^{reason}"):
        step_of(weights(**change))


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("head: expected 5 x 8", {"head": torch.zeros(5, 7)}),
        ("head: its dtype", {"head": torch.zeros(5, 8, dtype=torch.bfloat16)}),
        ("norm: expected 1 x 8", {"norm": torch.zeros(1, 7)}),
        ("embedding must be float32 or bfloat16", {"embedding": torch.zeros(5, 8, dtype=torch.float16)}),
        ("layers: a decoder has at least one", {"layers": []}),
        ("query_heads must be a multiple", {"query_heads": 3}),
        ("kv_heads and head_dim", {"kv_heads": 0}),
    ],
)
def test_a_decoder_that_does_not_fit_together_is_refused(reason: str, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{reason}"):
        step_of(weights(), **change)


def test_input_that_does_not_fit_is_named() -> None:
    with decoder_of("llama", torch.float32) as (layout, decoder):
        case, other = Case(layout, *BATCHES["two"]), Case(layout, *BATCHES["mixed"])
        plain, wrong = case.plan.plain(), other.plan.plain()
        assert decoder.native_step is not None
        step, table = decoder.native_step.native, decoder.native_step.table
        logits = torch.empty(2, VOCABULARY)
        given = {
            "ids": case.ids.numpy(),
            "positions": case.positions.numpy(),
            "keep": np.arange(2),
            "rotary": table.up_to(64).rotary,
            "caches": plain.caches,
            "group_of": plain.group_of,
            "slots": plain.slots,
            "plans": plain.plans,
            "logits": native_matrix(KERNELS, logits),
        }
        step.run(**given)
        narrow, few = torch.empty(2, 7), torch.empty(1, VOCABULARY)
        for error, reason, change in [
            (IndexError, r"ids\[1\] is 256", {"ids": np.array([0, VOCABULARY])}),
            (IndexError, r"positions\[0\] is -1", {"positions": np.array([-1, 0])}),
            (IndexError, r"keep\[1\] is 2", {"keep": np.array([0, 2])}),
            (TypeError, "ids must be int32 or int64", {"ids": np.zeros(2)}),
            (ValueError, "positions: expected one", {"positions": np.zeros(3, np.int64)}),
            (ValueError, "caches: expected one", {"caches": plain.caches[:1]}),
            (ValueError, "group_of: expected one", {"group_of": [0]}),
            (ValueError, "group_of: there is no such", {"group_of": [*plain.group_of[:-1], 1]}),
            (ValueError, "slots: made for another number", {"slots": wrong.slots}),
            (ValueError, "plans: made for another number", {"plans": wrong.plans}),
            (ValueError, "plans: expected as many", {"plans": []}),
            (ValueError, "logits: expected 2 x 256", {"logits": native_matrix(KERNELS, narrow)}),
            (ValueError, "logits: expected 2 x 256", {"logits": native_matrix(KERNELS, few)}),
            (ValueError, "threads", {"threads": -1}),
        ]:
            with pytest.raises(error, match=f"^{reason}"):
                step.run(**{**given, **change})
