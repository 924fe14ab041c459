"""Page sizes by model and context: attention time, waste, table size, hits; and the size that follows from them.

The recommendation is computed from the figures above it (page_size_advice.py) and stands beside the description's
appendix A, which gives KB: ``_layer_kib`` of the recommended page is K and V of one layer, as the description counts,
``_block_kib`` is all layers, which is what moves between tiers.

Attention is measured for one layer at each model's shape, with random K and V, by the native kernels of this machine; a
model's rate is measured only for SmolLM2, where it was fetched. ``--traces DIR`` adds hits of a recorded trace.
``--quick`` measures two of the models and three of the contexts.
"""

from collections.abc import Iterator
from pathlib import Path

from kvpager.bench import page_size_attention, page_size_hits, page_size_rate, page_size_waste
from kvpager.bench.limits import native_module
from kvpager.bench.page_size_advice import MOST_OVERHEAD, MOST_WASTE, advise
from kvpager.bench.page_size_attention import AttentionTimes
from kvpager.bench.page_size_models import CONTEXTS, MODELS, PAGE_SIZES, SizedModel, described_kib
from kvpager.bench.report import Result, report
from kvpager.errors import ConfigError

_TRACE = "*conversation_trace*"
_CHECKS = (
    "attention of each model, context and page size is that of the fp32 reference",
    "prompts whose pages were written by hand are found, all of them, before decoding is timed",
)


def run(quick: bool = False, traces: str | None = None) -> dict[str, object]:
    file = None if traces is None else _trace_file(Path(traces))
    module = native_module()
    models = (MODELS[0], MODELS[2]) if quick else MODELS
    contexts = CONTEXTS[:3] if quick else CONTEXTS
    tokens, seconds, cold_bytes = (1 << 15, 0.3, 32 << 20) if quick else (1 << 16, 2.0, 256 << 20)
    results = list(_memory(quick))
    results += _hits(file)
    results += page_size_rate.measure(quick)
    for model in models:
        for context in contexts:
            times = page_size_attention.measure(model, context, PAGE_SIZES, tokens, seconds, cold_bytes)
            results += [*_attention(times), *_advice(model, times)]
    setting = f"{module.isa()} kernels, attention at most {MOST_OVERHEAD:.0%} over the fastest, waste {MOST_WASTE:.0%}"
    return report("page_size", results, setting, checks=_CHECKS)


def _trace_file(folder: Path) -> Path:
    found = sorted(path for path in folder.glob(_TRACE) if path.is_file())
    if not found:
        raise ConfigError(f"{folder} has no file {_TRACE}; put it there, packed or not, or leave --traces out")
    return found[0]


def _memory(quick: bool) -> Iterator[Result]:
    for context in CONTEXTS:
        for size in PAGE_SIZES:
            where = f"ctx={context}_page={size}"
            yield Result(f"page_size_waste/{where}", page_size_waste.waste(context, size), "share")
            yield Result(f"page_size_table/{where}", float(page_size_waste.table_bytes(context, size)), "bytes")
    books = page_size_waste.bookkeeping_microseconds(PAGE_SIZES, max(PAGE_SIZES) * (1 if quick else 4))
    for size, microseconds in books.items():
        yield Result(f"page_size_bookkeeping/page={size}", microseconds, "us")


def _hits(file: Path | None) -> Iterator[Result]:
    for size, share in page_size_hits.made_up(PAGE_SIZES).items():
        yield Result(f"page_size_hit_rate/made_up_page={size}", share, "share")
    for size, share in page_size_hits.recorded(file).items() if file else ():
        yield Result(f"page_size_hit_rate/recorded_page={size}", share, "share")


def _attention(times: AttentionTimes) -> Iterator[Result]:
    for size, ratio in times.over_best.items():
        where = f"{times.model}_ctx={times.context}_page={size}"
        yield Result(f"page_size_attention/{where}", times.milliseconds[size], "ms")
        yield ratio.result(f"page_size_attention_over_best/{where}")


def _advice(model: SizedModel, times: AttentionTimes) -> Iterator[Result]:
    over_best = {size: ratio.value for size, ratio in times.over_best.items()}
    waste = {size: page_size_waste.waste(times.context, size) for size in PAGE_SIZES}
    found, where = advise(over_best, waste), f"{model.name}_ctx={times.context}"
    yield Result(f"page_size_recommended/{where}", float(found.page_size), "tokens")
    yield Result(f"page_size_recommended_is_within_limits/{where}", float(found.is_both), "yes=1")
    yield Result(f"page_size_recommended_layer_kib/{where}", model.layer_kib(found.page_size), "KiB")
    yield Result(f"page_size_recommended_block_kib/{where}", model.page_kib(found.page_size), "KiB")
    described = described_kib(model.billions, times.context)
    yield Result(f"page_size_described_layer_kib/{where}", float(described), "KiB")
    yield Result(f"page_size_described/{where}", described * 1024 / model.shape.bytes_per_token, "tokens")
