"""The lower tiers as aligned lines of text, for whoever prints statistics. Knows numbers and widths, nothing else."""

from collections.abc import Mapping, Sequence

from kvpager.config import format_size
from kvpager.tiers.migration_statistics import MigrationStatistics
from kvpager.tiers.tier import TierStatistics, TransferCounts
from kvpager.types import TierKind

_HEADER = ("tiers", "pages", "held", "of", "hits", "stored", "loaded", "failed", "state")
_RIGHT = ("pages", "held", "of", "hits", "failed")


def tier_lines(tiers: Sequence[TierStatistics], hits: Mapping[TierKind, int], moves: MigrationStatistics) -> list[str]:
    """One line per tier, the nearest first, then what moves. ``hits``: prompt tokens found, by tier."""
    table = [_HEADER, *(_cells(tier, hits.get(tier.usage.kind, 0)) for tier in tiers)]
    widths = [max(len(row[column]) for row in table) for column in range(len(_HEADER))]
    widths[0] = max(widths[0], 7)  # as the lines above
    lines = [
        "  ".join(
            cell.rjust(width) if name in _RIGHT else cell.ljust(width)
            for name, cell, width in zip(_HEADER, row, widths, strict=True)
        ).rstrip()
        for row in table
    ]
    return [*lines, *filter(None, map(_troubles, tiers)), _moves(moves)]


def _cells(tier: TierStatistics, hits: int) -> tuple[str, ...]:
    usage = tier.usage
    return (
        tier.name,
        str(tier.pages),
        format_size(usage.used_bytes),
        format_size(usage.capacity_bytes) if usage.capacity_bytes else "-",  # a remote store doesn't say
        str(hits),
        _transfers(tier.stored),
        _transfers(tier.loaded),
        str(tier.stored.failed + tier.loaded.failed),
        tier.state,
    )


def _transfers(counts: TransferCounts) -> str:
    return f"{_many(counts.pages, 'page')}, {format_size(counts.bytes)} in {counts.seconds:.2f} s"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _troubles(tier: TierStatistics) -> str:
    """What went against the tier, where something did."""
    counts = {
        "dropped": tier.evicted,
        "refused": tier.refused,
        "declined": tier.declined,
        "quarantined": tier.quarantined,
    }
    told = [f"{count} {what}" for what, count in (*counts.items(), *tier.failures.items()) if count]
    return f"{tier.name.ljust(8)} {', '.join(told)}" if told else ""


def _moves(moves: MigrationStatistics) -> str:
    precision = "" if moves.precision == "exact" else f"; pages are {moves.precision}"
    lost = f"{moves.not_worth_keeping} not worth keeping, " if moves.not_worth_keeping else ""
    lost += f"{moves.lost} lost"
    return (
        f"moves    {format_size(moves.moving_bytes)} under way in {_many(moves.queued_jobs, 'job')}, "
        f"{moves.refused} refused, {lost}, {moves.late} late; waited {moves.io_wait_seconds:.2f} s for I/O"
        f"{precision}"
    )
