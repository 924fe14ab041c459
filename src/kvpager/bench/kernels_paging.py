"""What paging costs: the same content in blocks all over the pool and in blocks one after the other, by page size."""

from kvpager.bench.interleaved import Ratio, run_in_turn
from kvpager.bench.paged_case import LLAMA, SMOL, PagedCase, Shape
from kvpager.bench.report import Result
from kvpager.bench.scale import Scale
from kvpager.config import DEFAULT_PAGE_SIZE
from kvpager.errors import InvariantError

PAGE_SIZES = sorted({16, 32, 64, 128, DEFAULT_PAGE_SIZE})
OVERHEAD = 1.08  # at most


def measure(scale: Scale) -> list[Result]:
    """The figure of the default page size is that of the worse shape."""
    found = {
        (shape.name, page_size): _overhead(shape, page_size, scale)
        for shape in (LLAMA, SMOL)
        for page_size in PAGE_SIZES
    }
    worst = max((found[shape.name, DEFAULT_PAGE_SIZE] for shape in (LLAMA, SMOL)), key=lambda ratio: ratio.value)
    return [
        worst.result("paging_overhead_default", at_most=OVERHEAD),
        *(ratio.result(f"paging_overhead_{name}/page={size}") for (name, size), ratio in found.items()),
    ]


def _overhead(shape: Shape, page_size: int, scale: Scale) -> Ratio:
    cold = scale.cold_bytes
    with (
        PagedCase(shape, scale.paging, cold_bytes=cold, page_size=page_size) as shuffled,
        PagedCase(shape, scale.paging, cold_bytes=cold, page_size=page_size, is_shuffled=False) as consecutive,
    ):
        shuffled.check()
        consecutive.take_content_of(shuffled)
        for number in range(shuffled.num_batches):
            if not shuffled.output(number).equal(consecutive.output(number)):
                raise InvariantError("the result of attention depends on where blocks lie; it was not timed")
        return run_in_turn([shuffled.run, consecutive.run], scale.seconds).ratio(0, 1)
