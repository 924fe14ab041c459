"""The metrics of the engine: queue, steps, tokens, preemptions, decisions. One table; every reading is of one snapshot.

Requests with several choices count once for each in whatever says "choices".
"""

from collections import Counter

from kvpager.engine.preemption import PreemptionMode
from kvpager.metrics.metric import Group, Metric, Series, by_tier, counter, gauge, tier_name
from kvpager.metrics.snapshot import Snapshot
from kvpager.types import TierKind


def _tiers(snapshot: Snapshot) -> tuple[TierKind, ...]:
    return (TierKind.DEVICE, *(tier.usage.kind for tier in snapshot.cache.tiers))


def _resumed(counts: dict[TierKind, int]) -> Series:
    """``none``: computed again."""
    return {(tier_name(tier),): count for tier, count in {TierKind.NONE: 0, **counts}.items()}


def _approximate(snapshot: Snapshot) -> Series:
    """By the kind alone: its numbers are chosen by clients, and would make series without end."""
    kinds: Counter[str] = Counter()
    for attention, count in snapshot.engine.approximate_requests.items():
        kinds[attention.partition(":")[0]] += count
    return {(kind,): count for kind, count in kinds.items()}


ENGINE_METRICS: tuple[Metric, ...] = (
    gauge("choices", Group.ENGINE, "Choices of requests by state; those that wait for their pages are waiting.",
          lambda s: {("running",): s.engine.running, ("waiting",): s.engine.waiting}, "state"),
    gauge("queue_capacity", Group.ENGINE, "Choices that may wait; more are refused.", lambda s: s.setting.max_waiting),
    gauge("loads_under_way", Group.ENGINE, "Choices that wait for pages from a lower tier, or for its answer.",
          lambda s: s.engine.loading),
    counter("prompt_tokens", Group.ENGINE,
            "Tokens of prompts that have started: kvpager_prompt_computed_tokens_total and the sum of "
            "kvpager_prompt_hit_tokens_total.",
            lambda s: s.engine.prompt_tokens),
    counter("prompt_hit_tokens", Group.ENGINE, "Of those, the ones that were found, by where they had been.",
            lambda s: by_tier(s.engine.prefix_by_tier, _tiers(s)), "tier"),
    counter("prompt_computed_tokens", Group.ENGINE, "Of those, the ones that are computed.",
            lambda s: s.engine.prompt_tokens - s.engine.prefix_tokens),
    counter("generated_tokens", Group.ENGINE, "Tokens generated.", lambda s: s.engine.generated_tokens),
    counter("computed_tokens", Group.ENGINE, "Tokens whose K and V were computed, of prompts and answers, also again.",
            lambda s: s.cache.computed_tokens),
    counter("engine_steps", Group.ENGINE, "Steps, also by those whose pages do not fit on the device (oversized).",
            lambda s: {("ordinary",): s.engine.steps, ("oversized",): s.engine.slow_steps}, "kind"),
    counter("engine_seconds", Group.ENGINE, "Seconds of those steps by what they were spent on.",
            lambda s: {
                ("model",): s.engine.model_seconds,
                ("bookkeeping",): s.engine.bookkeeping_seconds,
                ("sampling",): s.engine.sampling_seconds,
            }, "kind"),
    counter("preemptions", Group.ENGINE,
            "Running choices that were stopped so that others could go on, by what becomes of their pages: none can be "
            "found again (recompute), they stay cached (keep), or a tier has them if others take the blocks (swap).",
            lambda s: {(mode.value,): s.engine.preemptions_by_mode.get(mode, 0) for mode in PreemptionMode}, "mode"),
    counter("resumptions", Group.ENGINE,
            "Preempted choices that started again, by the slowest tier that gave something back; none: all was "
            "computed again.",
            lambda s: _resumed(s.engine.resumptions.by_tier), "tier"),
    counter("resumed_tokens", Group.ENGINE, "Tokens they had lost, by where they were found; none: computed again.",
            lambda s: _resumed(s.engine.resumptions.tokens), "tier"),
    counter("load_decisions", Group.ENGINE,
            "What was decided about prompts whose pages a lower tier has: they were loaded, partly, or computed again.",
            lambda s: {(kind,): getattr(s.engine.loads, kind) for kind in ("loaded", "partly", "computed")}, "kind"),
    counter("load_decision_tokens", Group.ENGINE, "Tokens that were loaded, or computed though a tier has them.",
            lambda s: {
                ("loaded",): s.engine.loads.loaded_tokens,
                ("computed",): s.engine.loads.computed_tokens,
            }, "kind"),
    counter("oversized_requests", Group.ENGINE, "Requests whose pages did not fit on the device.",
            lambda s: s.engine.oversized_requests),
    counter("approximate_requests", Group.ENGINE, "Requests computed by an attention that is not exact.",
            _approximate, "kind"),
    counter("selective_steps", Group.ENGINE, "Tokens computed by selective attention that left pages out.",
            lambda s: s.engine.selection.steps),
    counter("selective_skipped_mass", Group.ENGINE,
            "Shares of the attention that these left out, as estimated, added up: over kvpager_selective_steps_total, "
            "their mean.",
            lambda s: s.engine.selection.skipped),
    gauge("selective_memory_bytes", Group.ENGINE,
          "What selective attention keeps beside the pages of running requests: digests of all pages, and rows of "
          "selected pages that have no block.",
          lambda s: {
              ("digests",): s.engine.selection.digest_bytes,
              ("rows",): s.engine.selection.kept_row_bytes,
          }, "kind"),
)  # fmt: skip
