"""A line of the log that sums up what a server did since the last one. Reads two snapshots, and knows nothing else."""

from collections.abc import Mapping

from kvpager.metrics.snapshot import Snapshot
from kvpager.types import TierKind


def status_line(before: Snapshot, now: Snapshot) -> str | None:
    """None where nothing happened. Rates are of the time between the two; hit rates too."""
    if not _has_news(before, now):
        return None
    seconds = max(now.at - before.at, 1e-9)
    prompt = now.engine.prompt_tokens - before.engine.prompt_tokens
    generated = now.engine.generated_tokens - before.engine.generated_tokens
    blocks = now.cache.blocks
    parts = [
        f"{prompt / seconds:.0f} prompt and {generated / seconds:.0f} generated tokens/s",
        f"{now.engine.running} running, {now.engine.waiting} waiting",
        f"KV {(blocks.used + blocks.moving) / blocks.total:.0%} in use, {blocks.cached / blocks.total:.0%} cached",
        _hits(before, now, prompt),
        _faults(before, now),
        _migrations(before, now),
    ]
    return "; ".join(filter(None, parts))


def _has_news(before: Snapshot, now: Snapshot) -> bool:
    is_busy = any(each.engine.running + each.engine.waiting for each in (before, now))
    has_ended = now.engine.finished_requests != before.engine.finished_requests
    return is_busy or has_ended or _migrations(before, now) != ""


def _hits(before: Snapshot, now: Snapshot, prompt: int) -> str:
    if not prompt:
        return ""
    found = _more(before.engine.prefix_by_tier, now.engine.prefix_by_tier)
    each = [f"{count / prompt:.0%} {tier.name.lower()}" for tier, count in sorted(found.items()) if count]
    return f"hits {', '.join(each) or '0%'}"


def _faults(before: Snapshot, now: Snapshot) -> str:
    told = []
    for kind, count in now.cache.faults.items():
        earlier = before.cache.faults.get(kind)
        pages = count.pages - (0 if earlier is None else earlier.pages)
        if pages:
            told.append(f"{pages} {kind.name.lower().replace('_', ' ')}")
    return f"faults {', '.join(told)}" if told else ""


def _migrations(before: Snapshot, now: Snapshot) -> str:
    then, after = before.cache.migration, now.cache.migration
    if then is None or after is None:
        return ""
    told = [
        f"{count} pages {way} {tier.name.lower()}"
        for way, was, has in (("down to", then.demoted, after.demoted), ("up from", then.promoted, after.promoted))
        for tier, count in sorted(_more(was, has).items())
        if count
    ]
    return f"moved {', '.join(told)}" if told else ""


def _more(before: Mapping[TierKind, int], now: Mapping[TierKind, int]) -> dict[TierKind, int]:
    return {tier: count - before.get(tier, 0) for tier, count in now.items()}
