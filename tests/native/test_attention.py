"""Paged attention in C++: against fp64 in every shape, and bit for bit against itself."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kvpager import native
from kvpager.attention.backend import LayerOptions
from kvpager.attention.cpu import attend, attend_partly, merge_partials
from tests.native.paged import Paged

MODULE = native.module()
pytestmark = pytest.mark.skipif(MODULE is None, reason=native.why_not())


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def random_case(seed: int) -> Paged:
    rng = np.random.default_rng(seed)
    count = int(rng.choice([1, 2, 5, 9]))
    lengths = rng.integers(1, 200, count).tolist()
    queries = [int(min(n, rng.choice([1, 1, 1, 2, 3, 8, 40]))) for n in lengths]
    kv_heads, group = int(rng.choice([1, 2, 3])), int(rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 12]))
    sinks = torch.from_numpy(rng.standard_normal(kv_heads * group)).float()
    return Paged(
        lengths,
        queries,
        kv_heads=kv_heads,
        group=group,
        head_dim=int(rng.choice([1, 7, 16, 31, 32, 40, 64, 80, 96, 128, 256])),
        page_size=int(rng.choice([1, 2, 3, 7, 16, 32, 100, 128])),
        dtype=str(rng.choice(["float32", "bfloat16", "float16", "int8", "float8_e4m3"])),
        q_dtype=str(rng.choice(["float32", "bfloat16", "float16"])),
        window=[None, None, 1, 5, 70][rng.integers(5)],
        options=LayerOptions(
            scale=[None, 0.3][rng.integers(2)],
            softcap=[None, None, 2.0, 30.0][rng.integers(4)],
            sinks=[None, sinks][rng.integers(2)],
        ),
        order=seed,
    )


@pytest.mark.parametrize("seed", range(24))
def test_random_shapes_agree_with_fp64(isa: str, seed: int) -> None:
    random_case(seed).check()


@pytest.mark.parametrize("page_size", [1, 5, 16, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "float8_e4m3"])
def test_contexts_of_several_pieces(isa: str, dtype: str, page_size: int) -> None:
    Paged([4500, 2049, 2048, 1], [1, 2, 1, 1], dtype=dtype, page_size=page_size).check()


def test_many_sequences() -> None:
    lengths = [(7 * at) % 90 + 1 for at in range(300)]
    Paged(lengths, [min(n, 1 + at % 3) for at, n in enumerate(lengths)]).check()


@pytest.mark.parametrize("window", [1, 63, 64, 65, 2048, 3000])
def test_windows_at_the_borders_of_tiles_and_pieces(window: int) -> None:
    Paged([4100, 130], [3, 60], window=window, page_size=16).check()


def test_no_queries_and_no_sequences() -> None:
    assert Paged([], []).run().shape == (0, 4, 16)
    whole = Paged([9, 5], [1, 1])
    partly = whole.plan(query_offsets=np.array([0, 0, 1]))
    out = attend(partly, whole.layer(), whole.q[1:])
    assert torch.equal(out, whole.run()[1:])


# -- the same bits ---------------------------------------------------------------------------------------------------

LENGTHS, QUERIES = [5000, 33, 1, 2100, 700], [1, 4, 1, 2, 100]


@pytest.mark.parametrize("page_size", [1, 16, 24])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_the_order_of_blocks_changes_no_bit(dtype: str, page_size: int) -> None:
    found = [Paged(LENGTHS, QUERIES, dtype=dtype, page_size=page_size, order=order).run() for order in range(3)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_number_of_threads_changes_no_bit(threads: Any) -> None:
    case = Paged(LENGTHS, QUERIES, kv_heads=3, head_dim=64)
    found = []
    for count in (1, 2, 3, 5):
        threads(count)
        found.append(case.run())
    assert all(torch.equal(found[0], each) for each in found[1:])


def test_batch_mates_change_no_bit() -> None:
    together = Paged(LENGTHS, QUERIES).run().split(QUERIES)
    for name, (length, count) in enumerate(zip(LENGTHS, QUERIES, strict=True)):
        assert torch.equal(Paged([length], [count], names=[name]).run(), together[name])


def test_strides_of_queries_and_cache_change_no_bit() -> None:
    case = Paged([70, 9], [3, 1])
    wide = torch.full((4, 9, 40), float("nan"))
    wide[:, 2:6, 8:24] = case.q
    assert torch.equal(attend(case.plan(), case.layer(), wide[:, 2:6, 8:24]), case.run())
    turned = case.q.transpose(1, 2).contiguous().transpose(1, 2)  # head_dim is not contiguous
    assert torch.equal(attend(case.plan(), case.layer(), turned), case.run())
    token_major = torch.full((case.num_blocks, 4, 2, 2, 16), float("nan"))  # block, slot, K|V, head, dim
    token_major.copy_(case.view.permute(0, 3, 2, 1, 4))
    strides = {"block_stride": 1024, "head_stride": 64, "half_stride": 128, "slot_stride": 256}
    layer = MODULE.CacheLayer(**{**case.layer_arguments, **strides, "address": token_major.data_ptr()})
    assert torch.equal(attend(case.plan(), layer, case.q), case.run())


def test_a_nan_key_is_not_lost() -> None:
    case = Paged([70, 9], [1, 1])
    case.view[case.tables[0][3], 0, 0, 1, 5] = float("nan")
    out = case.run()
    assert out[0, :2].isnan().all()  # the query heads of KV head 0
    assert out[0, 2:].isfinite().all()
    assert out[1].isfinite().all()


# -- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 7])
def test_parts_over_any_split_of_the_pages_merge_to_the_whole(num_parts: int, dtype: str, window: int | None) -> None:
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    case = Paged([4500, 50, 3, 300], [1, 3, 1, 20], dtype=dtype, window=window)
    rng = np.random.default_rng(num_parts)
    owners = [rng.integers(0, num_parts, len(table)) for table in case.tables]
    parts = []
    for part in range(num_parts):
        plan = case.subset([np.flatnonzero(owner == part) for owner in owners])
        options = LayerOptions(sinks=sinks if part == 0 else None)
        out, lse = attend_partly(plan, case.layer(), case.q, options)
        assert out.isfinite().all()
        parts.append((out, lse))
    out, lse = merge_partials(parts)
    whole, whole_lse = attend_partly(case.plan(), case.layer(), case.q, LayerOptions(sinks=sinks))
    torch.testing.assert_close(out, whole, rtol=1e-5, atol=1e-5 * whole.abs().max().item())
    torch.testing.assert_close(lse, whole_lse, rtol=1e-5, atol=1e-5)
    half = merge_partials(parts[:1] + parts[1:2])
    torch.testing.assert_close(merge_partials([half, *parts[2:]])[0], out, rtol=1e-5, atol=1e-6)


def test_a_part_without_pages_is_empty() -> None:
    case = Paged([4500, 50], [1, 40])
    nothing = np.empty(0, np.int64)
    out, lse = attend_partly(case.subset([nothing, nothing]), case.layer(), case.q)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()
    out, lse = merge_partials([(out, lse), (out, lse)])
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


def test_the_log_of_the_sum_of_exponentials() -> None:
    case = Paged([30], [2], kv_heads=1, group=1)
    _, lse = attend_partly(case.plan(), case.layer(), case.q)
    scores = case.q[:, 0].double() @ case.keys[0][:, 0].T / 4
    scores[0, 29] = -torch.inf
    torch.testing.assert_close(lse[:, 0].double(), scores.logsumexp(1), rtol=1e-6, atol=1e-6)


# -- wrong arguments -------------------------------------------------------------------------------------------------

I64 = np.int64


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query_offsets": np.array([0, 1, 2], np.int32)}, "query_offsets: expected int64"),
        ({"query_offsets": np.array([[0, 1, 2]])}, "query_offsets: expected one dimension"),
        ({"query_offsets": np.array([0, 2])}, "query_offsets: expected one more"),
        ({"query_offsets": np.array([1, 1, 2])}, "query_offsets must begin with 0"),
        ({"query_offsets": np.array([0, 3, 2])}, "query_offsets must not decrease"),
        ({"query_offsets": np.array([0, 1, 2**40])}, "query_offsets: length of sequence 1"),
        ({"starts": np.array([8, 4], np.int32)}, "starts: expected int64"),
        ({"starts": np.array([-1, 4])}, "starts: start of sequence 0 is out of range"),
        ({"starts": np.array([2**62, 4])}, "starts: start of sequence 0 is out of range"),
        ({"starts": np.array([12, 4])}, "too few blocks for what the queries of sequence 0 see"),
        ({"table_offsets": np.array([0, 3])}, "table_offsets: expected one more"),
        ({"table_offsets": np.array([0, 3, 4])}, "table_offsets must end with the number of blocks"),
        ({"table_offsets": np.array([0, 2, 5])}, "table_offsets: too few blocks"),
        ({"table_offsets": np.array([0, 6, 5])}, "table_offsets must not decrease"),
        ({"blocks": np.array([0, 1, 2, 3, 8], np.int32)}, "blocks: block 8 is not one of 8"),
        ({"blocks": np.array([0, 1, -1, 3, 4], np.int32)}, "blocks: block -1 is not one of 8"),
        ({"blocks": np.arange(5)}, "blocks: expected int32"),
        ({"pages": np.arange(4, dtype=np.int32)}, "pages: expected one per block"),
        ({"pages": np.arange(5)}, "pages: expected int32"),
        ({"pages": np.array([0, 2, 1, 0, 1], np.int32)}, "pages of sequence 0 must increase"),
        ({"pages": np.array([-1, 0, 1, 0, 1], np.int32)}, "pages of sequence 0 must increase"),
        ({"window": -1}, "window must not be negative"),
        ({"page_size": 0}, "page_size must be at least 1"),
        ({"num_blocks": 0}, "num_blocks must be at least 1"),
    ],
    ids=str,
)
def test_a_wrong_plan_is_refused(change: dict[str, Any], reason: str) -> None:
    case = Paged([9, 5], [1, 1])
    assert case.plan(pages=np.array([0, 1, 2, 0, 1], np.int32)).num_tokens == 2
    with pytest.raises(ValueError, match=reason):
        case.plan(**change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"page_size": 2}, "layer: its page_size is not the plan's"),
        ({"num_blocks": 7}, "layer: it has fewer blocks"),
        ({"kv_heads": 3}, "query_heads must be a multiple"),
        ({"head_dim": 8}, "q has head_dim 16, the layer has 8"),
    ],
    ids=str,
)
def test_a_layer_of_another_shape_is_refused(change: dict[str, int], reason: str) -> None:
    case = Paged([9, 5], [1, 1])
    with pytest.raises(ValueError, match=reason):
        attend(case.plan(), MODULE.CacheLayer(**{**case.layer_arguments, **change}), case.q)
    case.check()


@pytest.mark.parametrize(
    ("q", "reason"),
    [
        (torch.zeros(3, 4, 16), "q has 3 tokens, the plan has 2"),
        (torch.zeros(2, 3, 16), "query_heads must be a multiple"),
        (torch.zeros(2, 4, 17), "q has head_dim 17"),
        (torch.zeros(2, 4, 16, dtype=torch.float64), "q is torch.float64"),
    ],
    ids=["tokens", "heads", "dim", "dtype"],
)
def test_wrong_queries_are_refused(q: torch.Tensor, reason: str) -> None:
    case = Paged([9, 5], [1, 1])
    with pytest.raises(ValueError, match=reason):
        attend(case.plan(), case.layer(), q)
    case.check()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"q": 0}, "q: rows need memory"),
        ({"out": 0}, "out: rows need memory"),
        ({"q_dtype": "int8"}, "q: dtype 'int8' is not supported"),
        ({"out_dtype": "complex64"}, "out: dtype 'complex64' is not supported"),
        ({"query_heads": 0}, "query_heads must be"),
    ],
    ids=str,
)
def test_wrong_addresses_and_dtypes_are_refused(change: dict[str, Any], reason: str) -> None:
    case = Paged([9, 5], [1, 1])
    out = torch.empty_like(case.q)
    rows = {"q": case.q.data_ptr(), "q_token_stride": 64, "q_head_stride": 16, "q_dtype": "float32"}
    outs = {"out": out.data_ptr(), "out_token_stride": 64, "out_head_stride": 16, "out_dtype": "float32"}
    good = {"layer": case.layer(), "query_heads": 4, "scale": 0.25, **rows, **outs}
    case.plan().run(**good)
    assert torch.equal(out, case.run())
    with pytest.raises(ValueError, match=reason):
        case.plan().run(**{**good, **change})
