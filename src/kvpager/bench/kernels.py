"""The native CPU kernels against the limits of this machine's memory and matrix products, and against torch.

Every figure is a ratio of calls that ran in turn, after their results were compared with the reference. What each one
means: docs/benchmarks.md.
"""

from collections.abc import Callable

from kvpager.bench import kernels_decode, kernels_moving, kernels_paging, kernels_prefill, kernels_quantized
from kvpager.bench.limits import native_module
from kvpager.bench.report import Result, report
from kvpager.bench.scale import FULL, QUICK, Scale

PARTS: dict[str, Callable[[Scale], list[Result]]] = {
    "decode": kernels_decode.measure,
    "quantized": kernels_quantized.measure,
    "paging": kernels_paging.measure,
    "prefill": kernels_prefill.measure,
    "moving": kernels_moving.measure,
    "step": lambda scale: _decode_step(quick=scale is QUICK),
}


def run(quick: bool = False) -> dict[str, object]:
    return run_parts(list(PARTS), quick)


def run_parts(names: list[str], quick: bool = False) -> dict[str, object]:
    """Only some of the parts: each takes about a minute when it isn't quick."""
    module = native_module()
    scale = QUICK if quick else FULL
    results = [result for name in names for result in PARTS[name](scale)]
    return report(
        "kernels",
        results,
        f"{module.isa()} kernels, {module.num_threads()} threads",
        checks=["attention against the fp32 reference over the same bytes", "copies and writes byte by byte"],
    )


def _decode_step(quick: bool) -> list[Result]:
    """Of the real model: nothing where it, or what it needs to run, is missing."""
    try:
        from kvpager.bench.step_overhead import decode_step_overhead
    except ModuleNotFoundError as error:
        if error.name not in ("transformers", "safetensors"):
            raise
        return []
    return decode_step_overhead(quick)
