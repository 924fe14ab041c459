"""Prompt tokens found, by the tier they came from, as commands show them."""

from collections.abc import Mapping

from kvpager.types import TierKind


def hits_by_name(hits: Mapping[TierKind, int]) -> dict[str, int]:
    """For JSON: ``{"device": 32, "disk": 64}``, without tiers that gave nothing."""
    return {tier.name.lower(): tokens for tier, tokens in sorted(hits.items()) if tokens}


def in_words(hits: Mapping[TierKind, int]) -> str:
    """ " (32 on the device, 64 on disk)", or nothing where all were on the device."""
    found = hits_by_name(hits)
    if not set(found) - {"device"}:
        return ""
    return f" ({', '.join(f'{tokens} from {tier}' for tier, tokens in found.items())})"
