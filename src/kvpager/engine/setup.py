"""From a model's name and the options to everything an engine runs on. Runs nothing, knows no requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kvpager import native
from kvpager.assemble import open_cache
from kvpager.attention.backend import AttentionBackend
from kvpager.attention.select import select
from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.reclaim import Watermarks
from kvpager.config import AUTO, Options, available_memory, resolve_capacity
from kvpager.config.options import CONTIGUOUS, PAGED
from kvpager.engine.block_needs import Limits, holding_blocks, tokens_that_fit
from kvpager.engine.model_runner import ModelRunner
from kvpager.engine.oversized import NO_LIMIT, Oversized
from kvpager.errors import ConfigError
from kvpager.integrations.fingerprint import fingerprint_of
from kvpager.integrations.model_layout import check_supported, layout_for, max_context
from kvpager.memory.layout import QUANTIZED, KVLayout
from kvpager.models.load import load_model
from kvpager.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CANONICAL_CHUNK = 64  # tokens: in deterministic mode prompts are computed in pieces that end at multiples of it
_SCORED_BYTES = 256 << 20  # of logits, in a step that computes prompts whose logits are all wanted
_FEWEST_SCORED = 64  # tokens of such a step, however large a vocabulary is


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is put together from. ``max_tokens``: the longest sequence that model and pool allow;
    ``max_request_tokens``: with the tiers ``below`` too, which is how much they add, or why they don't, in words;
    ``longest_context``: the model alone, and the options.
    """

    model: PreTrainedModel
    tokenizer: Any
    end_tokens: frozenset[int]
    cache: PagedCache
    runner: ModelRunner
    limits: Limits
    vocab_size: int
    max_context: int | None
    max_tokens: int
    max_request_tokens: int
    longest_context: int
    below: str


def build(model: str | PreTrainedModel, tokenizer: Any, options: Options, num_blocks: int | None) -> EngineParts:
    """Loads the model unless it is loaded, and opens the cache. Raises ConfigError, ModelError, UnsupportedModel."""
    native.choose(options.native)
    model, tokenizer, end_tokens = _load(model, tokenizer, options)
    check_supported(model.config)
    layout = layout_for(model.config, dtype=_kv_dtype(model, options), page_size=options.page_size)
    chunk = _canonical_chunk(layout, options) if options.deterministic else None
    backend = select(layout, options.attention)
    blocks = num_blocks if num_blocks is not None else _num_blocks(model, layout, options)
    max_tokens = _longest_sequence(model, layout, blocks, chunk, options)
    arithmetic = _arithmetic(backend, options) if options.deterministic else ""
    cache = open_cache(
        layout,
        num_blocks=blocks,
        device=str(model.device),
        tiers=options.tiers,
        write_back=options.write_back,
        load_deadline=options.load_deadline,
        tier_dtype=_tier_dtype(options),
        window=options.window if options.tiers and options.demand_paging == AUTO else None,
        eviction=options.eviction,
        watermarks=Watermarks.from_threshold(options.eviction_threshold, blocks),
        contiguous=options.allocation != PAGED,
        prefix_cache=options.prefix_cache and options.allocation == PAGED,
        match_inside_pages=options.partial_hits and chunk is None,
        fingerprint=fingerprint_of(model, arithmetic),
        pinned_share=options.pinned_share,
        debug=options.debug,
    )
    context = min((n for n in (options.max_context, max_context(model.config)) if n is not None), default=NO_LIMIT)
    oversized = Oversized.of(cache, options, chunk, max_tokens, context)
    for quota in options.quotas:
        cache.retention.set_quota(quota.tenant, quota.capacity, weight=quota.weight)
    vocab_size = int(model.config.get_text_config().vocab_size)
    runner = ModelRunner(model, backend, layout, cache.arena, options.fused_layers, arithmetic)
    return EngineParts(
        model=model,
        tokenizer=tokenizer,
        end_tokens=end_tokens,
        cache=cache,
        runner=runner,
        limits=Limits(
            layout,
            options.max_running,
            options.max_batch_tokens,
            cache.min_watermark,
            chunk,
            oversized.slow,
            whole_run=layout.num_pages(context) if options.allocation == CONTIGUOUS else None,
            max_scored=max(_FEWEST_SCORED, _SCORED_BYTES // (4 * vocab_size)),
        ),
        vocab_size=vocab_size,
        max_context=max_context(model.config),
        max_tokens=max_tokens,
        max_request_tokens=oversized.max_tokens,
        longest_context=context,
        below=oversized.explained,
    )


def _load(
    model: str | PreTrainedModel, tokenizer: Any, options: Options
) -> tuple[PreTrainedModel, Any, frozenset[int]]:
    if isinstance(model, str):
        device = _device(options)
        plain = device == "cpu" and options.fused_layers and native.module() is not None
        loaded = load_model(model, dtype=options.dtype, device=device, plain=plain)
        return loaded.model, tokenizer or loaded.tokenizer, frozenset(loaded.eos_token_ids)
    ends = getattr(model.generation_config, "eos_token_id", None)
    return model, tokenizer, frozenset([] if ends is None else ends if isinstance(ends, list) else [ends])


def _device(options: Options) -> str:
    if options.device != AUTO:
        return options.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _kv_dtype(model: PreTrainedModel, options: Options) -> str:
    model_dtype = str(model.dtype).removeprefix("torch.")
    if options.kv_dtype in QUANTIZED:
        return options.kv_dtype
    if options.kv_dtype not in (AUTO, model_dtype):
        raise ConfigError(
            f"kv_dtype {options.kv_dtype!r} differs from the activations ({model_dtype}), which no attention backend "
            f"here converts; leave it at 'auto', or choose one of {', '.join(QUANTIZED)}"
        )
    return model_dtype


def _arithmetic(backend: AttentionBackend, options: Options) -> str:
    """What the last bits of the KV hang on: a page of another process is bit-equal only if it agrees in this."""
    module = native.module()
    isa = "off" if module is None else module.isa()
    return (
        f"deterministic {CANONICAL_CHUNK} {backend.name} {isa} fused={options.fused_layers} "
        f"threads={torch.get_num_threads()} torch={torch.__version__} kvpager={__version__}"
    )


def _tier_dtype(options: Options) -> str | None:
    if options.tier_dtype == AUTO:
        return None
    if options.deterministic:
        raise ConfigError("deterministic mode needs the same bytes on every path: leave tier_dtype at 'auto'")
    return options.tier_dtype


def _canonical_chunk(layout: KVLayout, options: Options) -> int:
    chunk = max(1, CANONICAL_CHUNK // layout.page_size) * layout.page_size
    if chunk > options.max_batch_tokens:
        raise ConfigError(f"deterministic mode computes {chunk} tokens at once: raise max_batch_tokens to that")
    return chunk


def _num_blocks(model: PreTrainedModel, layout: KVLayout, options: Options) -> int:
    free = available_memory() if model.device.type == "cpu" else torch.cuda.mem_get_info(model.device)[0]
    blocks = resolve_capacity(options.capacity, free) // layout.block_stride
    context = max_context(model.config)
    if options.capacity == AUTO and context is not None:  # more than this could never be filled by running requests
        blocks = min(blocks, options.max_running * holding_blocks(layout, context))
    if blocks < 1:
        raise ConfigError(f"capacity {options.capacity!r} holds no block of {layout.block_stride} bytes; ask for more")
    return blocks


def _longest_sequence(
    model: PreTrainedModel, layout: KVLayout, num_blocks: int, chunk: int | None, options: Options
) -> int:
    limits = [limit for limit in (options.max_context, max_context(model.config)) if limit is not None]
    fits = tokens_that_fit(layout, num_blocks, min(limits, default=NO_LIMIT), chunk or 1)
    if fits < (chunk or 1):
        raise ConfigError(
            f"a pool of {num_blocks} blocks holds {fits} tokens of one sequence, too few to run"
            + (f" in deterministic mode (at least {chunk})" if chunk else "")
            + "; raise the capacity or lower the page size"
        )
    return fits
