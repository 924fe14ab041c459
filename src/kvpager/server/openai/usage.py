"""What an answer took, in tokens; and how it was computed, where that is not the rule."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvpager.engine.faults import NO_FAULTS
from kvpager.engine.request import Completion
from kvpager.engine.selection import NO_SELECTION
from kvpager.server.answer import Answer
from kvpager.server.openai.streaming import Chunks
from kvpager.server.service import Service
from kvpager.types import TierKind


def usage_of(answers: Iterable[Sequence[Completion]], tiers: Sequence[TierKind]) -> dict[str, Any]:
    """``answers``: the choices of each prompt; the prompt counts once for all of them. ``tiers``: those there are."""
    answers = list(answers)
    firsts = [choices[0] for choices in answers]  # the others are forked from it
    every = [choice for choices in answers for choice in choices]
    prompt = sum(first.prompt_tokens for first in firsts)
    generated = sum(len(choice.token_ids) for choice in every)
    by_tier = {tier.name.lower(): sum(first.prefix_by_tier.get(tier, 0) for first in firsts) for tier in tiers}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {
            "cached_tokens": sum(first.prefix_tokens for first in firsts),
            "cached_tokens_by_tier": by_tier,
        },
    } | _exceptions(every)


def _exceptions(every: Sequence[Completion]) -> dict[str, Any]:
    """Approximate attention, and contexts larger than the device: said only where there are any."""
    said: dict[str, Any] = {}
    attention = sorted({choice.attention for choice in every} - {"exact"})
    if attention:
        said["attention"] = ", ".join(attention)
    selection = sum((choice.selection for choice in every), NO_SELECTION)
    if selection.skipped_mass is not None:
        said |= {
            "selective_steps": selection.steps,
            "skipped_mass": round(selection.skipped_mass, 6),
            "digest_bytes": selection.digest_bytes,
            "kept_row_bytes": selection.kept_row_bytes,
        }
    oversized = [choice for choice in every if choice.is_oversized]
    if oversized:
        faults = sum((choice.faults for choice in oversized), NO_FAULTS)
        said |= {
            "oversized": True,
            "major_faults": faults.major,
            "fault_bytes": faults.bytes,
            "stalled_seconds": round(faults.stalled_seconds, 6),
        }
    return said


def tiers_of(service: Service) -> list[TierKind]:
    """The device, and what lies below it."""
    below = [TierKind[type(tier).__name__.removesuffix("Tier").upper()] for tier in service.engine.options.tiers]
    return [TierKind.DEVICE, *dict.fromkeys(below)]


def usage_chunk(service: Service, answers: Sequence[Answer], chunks: Chunks) -> bytes:
    """The last chunk of a stream. REQUIRES: finished."""
    done = [answer.request.completions() for answer in answers if answer.request is not None]
    return chunks.usage(usage_of(done, tiers_of(service)))
