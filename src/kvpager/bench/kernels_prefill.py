"""Prefill: 512 new tokens behind 8,192 cached ones, against torch and against the speed of matrix products alone."""

import torch

from kvpager.bench.interleaved import Call, run_in_turn
from kvpager.bench.paged_case import LLAMA, SMOL, TORCH_TOLERANCE, PagedCase, Shape, check_close
from kvpager.bench.report import Result
from kvpager.bench.scale import Load, Scale
from kvpager.bench.torch_attention import causal_bias, sdpa_expanded, sdpa_folded, sdpa_gqa, sdpa_grouped

FORMULATIONS = (sdpa_gqa, sdpa_expanded, sdpa_grouped, sdpa_folded)

VS_SDPA = 2.0  # at least
GEMM_SHARE = 0.65


def measure(scale: Scale) -> list[Result]:
    """The targets are those of the large shape."""
    return [*_measure(LLAMA, "", scale, True), *_measure(SMOL, "_smol", scale, False)]


def _measure(shape: Shape, suffix: str, scale: Scale, has_targets: bool) -> list[Result]:
    load, seconds = scale.prefill, scale.seconds
    prefix = f"prefill_512_on_8k{suffix}"
    with PagedCase(shape, load) as case:  # bound by arithmetic: it doesn't matter what the caches hold
        case.check()
        content, expected = case.contiguous()[0], case.expected(0)
        bias = causal_bias(load.new_tokens, load.context, torch.bfloat16)
        for attend in FORMULATIONS:
            found = attend(content.q, content.k, content.v, bias)
            check_close(attend.__name__, found.transpose(1, 2).reshape(expected.shape), expected, TORCH_TOLERANCE)
        torch_calls: list[Call] = [
            lambda attend=attend: attend(content.q, content.k, content.v, bias) for attend in FORMULATIONS
        ]
        times = run_in_turn(torch_calls, seconds / 2, least=3)
        best = FORMULATIONS[times.fastest(range(len(FORMULATIONS)))]
        times = run_in_turn(
            [
                case.run,
                lambda: best(content.q, content.k, content.v, bias),
                lambda: best(content.q, *case.gathered(0), bias),
                _large_product(scale.gemm_size),
                _same_products(shape, load),
            ],
            seconds,
        )
    pairs = load.new_tokens * (load.context - (load.new_tokens - 1) / 2)  # that are not masked
    flops = 4.0 * shape.query_heads * shape.head_dim * pairs
    gemm_flops = 2.0 * scale.gemm_size**3
    return [
        times.ratio(1, 0).result(f"{prefix}_vs_sdpa", at_least=VS_SDPA if has_targets else None),
        times.ratio(3, 0, flops / gemm_flops).result(
            f"{prefix}_gemm_share", "share", at_least=GEMM_SHARE if has_targets else None
        ),
        times.ratio(2, 0).result(f"{prefix}_vs_gather_sdpa"),
        times.ratio(4, 0).result(f"{prefix}_same_products_share", "share"),
        Result(f"{prefix}_ms", times.median(0) * 1e3, "ms"),
        Result(f"{prefix}_gflops", flops / times.median(0) / 1e9, "GFLOP/s"),
        Result(f"{prefix}_gemm_limit", gemm_flops / times.median(3) / 1e9, "GFLOP/s"),
    ]


def _large_product(size: int) -> Call:
    """A product of square matrices: what torch and the processor can do."""
    a, b = torch.randn(2, size, size).bfloat16()
    return lambda: torch.mm(a, b)


def _same_products(shape: Shape, load: Load) -> Call:
    """The two products of this attention over all pairs, masked ones too, with nothing between them."""
    rows = load.new_tokens * shape.query_heads // shape.kv_heads
    q = torch.randn(shape.kv_heads, rows, shape.head_dim).bfloat16()
    k, v = torch.randn(2, shape.kv_heads, load.context, shape.head_dim).bfloat16()
    scores = torch.empty(shape.kv_heads, rows, load.context, dtype=torch.bfloat16)

    def call() -> None:
        torch.bmm(q, k.transpose(1, 2), out=scores)
        torch.bmm(scores, v)

    return call
