"""Decode straight from quantized blocks, against decode from bf16 ones: half the bytes are read, and widened."""

from kvpager.bench.interleaved import run_in_turn
from kvpager.bench.paged_case import LLAMA, SMOL, PagedCase, Shape
from kvpager.bench.report import Result
from kvpager.bench.scale import Scale

INT8_TIME = 0.8  # of bf16, at most


def measure(scale: Scale) -> list[Result]:
    return [
        *_measure(LLAMA, "", scale, INT8_TIME),
        *_measure(SMOL, "_smol", scale, None),
    ]


def _measure(shape: Shape, suffix: str, scale: Scale, target: float | None) -> list[Result]:
    load, cold = scale.long, scale.cold_bytes
    with (
        PagedCase(shape, load, cold_bytes=cold, dtype="int8") as int8,
        PagedCase(shape, load, cold_bytes=cold, dtype="float8_e4m3") as fp8,
        PagedCase(shape, load, cold_bytes=cold) as bf16,
    ):
        for case in (int8, fp8, bf16):
            case.check()
        times = run_in_turn([int8.run, fp8.run, bf16.run], scale.seconds)
    return [
        times.ratio(0, 2).result(f"int8_decode{suffix}_vs_bf16_decode", at_most=target),
        times.ratio(1, 2).result(f"fp8_decode{suffix}_vs_bf16_decode"),
    ]
