"""The native CPU kernels against the limits of this machine's memory and matrix products, and against torch.

Every figure is a ratio of calls that ran in turn, after their results were compared with the reference. What each one
means: docs/benchmarks.md.
"""

from collections.abc import Callable

from kvpager.bench import kernels_decode, kernels_moving, kernels_paging, kernels_prefill
from kvpager.bench.limits import native_module
from kvpager.bench.report import Result, report

PARTS: dict[str, Callable[[float], list[Result]]] = {
    "decode": kernels_decode.measure,
    "paging": kernels_paging.measure,
    "prefill": kernels_prefill.measure,
    "moving": kernels_moving.measure,
}


def run(quick: bool = False) -> dict[str, object]:
    return run_parts(list(PARTS), quick)


def run_parts(names: list[str], quick: bool = False) -> dict[str, object]:
    """Only some of the parts: each takes about a minute when it isn't quick."""
    module = native_module()
    budget = 0.2 if quick else 3.0  # seconds per comparison
    results = [result for name in names for result in PARTS[name](budget)]
    return report("kernels", results, f"{module.isa()} kernels, {module.num_threads()} threads")
