"""When to alert an operator: one table, for Prometheus and for the product itself.

Each rule has a value, twice: in PromQL, over the metrics of the catalogue, and as a function of a Window of snapshots.
It fires once the value has been above ``above`` for ``hold_seconds``, and is over once it has not been for
``keep_seconds``. Both evaluations are tested on the same courses of events (tests/metrics/alert_courses.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from kvpager.metrics.metric import tier_name
from kvpager.metrics.snapshot import Snapshot
from kvpager.metrics.window import Window
from kvpager.types import FaultKind

_RATE_SECONDS = 300.0  # [5m] in the expressions
_RECENT_SECONDS = 600.0  # [10m]
MIN_RECENT_TOKENS = 10_000  # looked up, before a fall of the hit rate is believed
MIN_USUAL_TOKENS = 100_000
_WORTH_TELLING = 0.1  # a usual hit rate below is not missed


class Severity(Enum):
    WARNING = "warning"  # look at it today
    CRITICAL = "critical"  # look at it now


@dataclass(frozen=True, slots=True)
class Rule:
    """``measure``: the value by tier, under "" where it is not one of a tier; empty where nothing can be said.
    ``shown``: how the value is written, in Python's format and in Prometheus' template."""

    name: str
    severity: Severity
    summary: str
    advice: str
    value: str  # in PromQL
    measure: Callable[[Window], Mapping[str, float]]
    above: float
    shown: str = "{:.2f}"
    shown_by_prometheus: str = '{{ $value | printf "%.2f" }}'
    hold_seconds: int = 300
    keep_seconds: int = 120


def _hit_rate(of: str) -> str:
    found = f"sum without (tier) (increase(kvpager_prefix_hit_tokens_total{of}))"
    return f"{found} / increase(kvpager_prefix_lookup_tokens_total{of})"


def _one(value: float | None) -> Mapping[str, float]:
    return {} if value is None else {"": value}


def _memory(window: Window) -> Mapping[str, float]:
    blocks = window.latest.cache.blocks
    return {"": (blocks.used + blocks.moving) / blocks.total}


def _per_pool(read: Callable[[Snapshot], float]) -> Callable[[Window], Mapping[str, float]]:
    """Pools a minute: blocks that something counted, by those there are."""

    def measure(window: Window) -> Mapping[str, float]:
        rate = window.rate(read, _RATE_SECONDS)
        return _one(None if rate is None else 60 * rate / window.latest.cache.blocks.total)

    return measure


def _preemptions(window: Window) -> Mapping[str, float]:
    rate = window.rate(lambda s: s.engine.preemptions, _RATE_SECONDS)
    return _one(None if rate is None else 60 * rate)


def _backlog(window: Window) -> Mapping[str, float]:
    def refused(snapshot: Snapshot) -> float:
        return 0 if snapshot.cache.migration is None else snapshot.cache.migration.refused

    def stored(snapshot: Snapshot) -> float:
        return sum(tier.stored.pages for tier in snapshot.cache.tiers)

    no, yes = window.rate(refused, _RATE_SECONDS), window.rate(stored, _RATE_SECONDS)
    return _one(None if no is None or yes is None or no + yes == 0 else no / (no + yes))


def _failing(window: Window) -> Mapping[str, float]:
    return {tier_name(tier.usage.kind): float(tier.state != "ok") for tier in window.latest.cache.tiers}


def _fall(window: Window) -> Mapping[str, float]:
    usual = window.usual.hit_rate
    tokens = window.increase(lambda s: s.cache.prefix.prompt_tokens, _RECENT_SECONDS)
    hits = window.increase(lambda s: s.cache.prefix.hit_tokens, _RECENT_SECONDS)
    if usual is None or usual <= _WORTH_TELLING or tokens is None or hits is None or tokens <= MIN_RECENT_TOKENS:
        return {}
    return {"": 1 - hits / tokens / usual}


def _queue(window: Window) -> Mapping[str, float]:
    grown = window.increase(lambda s: s.engine.waiting, _RATE_SECONDS)
    if grown is None or grown < 0:
        return {}
    return {"": window.latest.engine.waiting / max(1, window.latest.engine.running)}


RULES = (
    Rule(
        "KVPagerMemoryNearlyFull",
        Severity.WARNING,
        "Nearly all blocks of the device are in use",
        "Requests wait for blocks and are preempted. Give the pool more memory (capacity), allow fewer requests at "
        "once (max_running), or add a tier below it.",
        'sum without (state) (kvpager_blocks{tier="device",state=~"used|moving"})\n'
        '  / kvpager_capacity_blocks{tier="device"}',
        _memory,
        above=0.95,
        shown="{:.0%} of blocks in use",
        shown_by_prometheus="{{ $value | humanizePercentage }} of blocks in use",
    ),
    Rule(
        "KVPagerFaultRateHigh",
        Severity.WARNING,
        "The device thrashes: pages keep coming up from lower tiers",
        "What is in use does not fit. Give the pool more memory, allow fewer requests at once, or send the requests of "
        "one session to one server.",
        '60 * sum without (kind) (rate(kvpager_faults_total{kind="major"}[5m]))\n'
        '  / sum without (tier) (kvpager_capacity_blocks{tier="device"})',
        _per_pool(lambda s: s.cache.faults[FaultKind.MAJOR].pages),
        above=0.5,
        shown="{:.2f} pools a minute",
        shown_by_prometheus='{{ $value | printf "%.2f" }} pools a minute',
    ),
    Rule(
        "KVPagerReclaimPressure",
        Severity.WARNING,
        "Cached pages are dropped about as soon as they are there",
        "Prefixes are gone before they are used again. Give the pool more memory, add a tier below it, or set quotas "
        "for tenants that fill it.",
        "60 * sum without (policy, reason) (\n"
        '    rate(kvpager_evictions_total{tier="device",reason=~"direct|background"}[5m]))\n'
        '  / kvpager_capacity_blocks{tier="device"}',
        _per_pool(lambda s: s.cache.reclaim.direct + s.cache.reclaim.background),
        above=1.0,
        shown="{:.2f} pools a minute",
        shown_by_prometheus='{{ $value | printf "%.2f" }} pools a minute',
    ),
    Rule(
        "KVPagerPreemptions",
        Severity.WARNING,
        "Running requests keep being stopped so that others can go on",
        "More runs than fits. Give the pool more memory, or allow fewer requests at once (max_running).",
        "60 * sum without (mode) (rate(kvpager_preemptions_total[5m]))",
        _preemptions,
        above=6.0,
        shown="{:.0f} a minute",
        shown_by_prometheus='{{ $value | printf "%.0f" }} a minute',
    ),
    Rule(
        "KVPagerMigrationBacklog",
        Severity.WARNING,
        "Pages are not copied down, as queues or tiers are full",
        "Their content is lost when their blocks are needed. A faster or larger tier helps, and for a remote one a "
        "higher max_moving_bytes.",
        'sum without (reason) (rate(kvpager_migration_misses_total{reason="refused"}[5m]))\n'
        '  / (sum without (reason) (rate(kvpager_migration_misses_total{reason="refused"}[5m]))\n'
        '    + sum without (tier, kind) (rate(kvpager_migrations_total{kind="store"}[5m])))',
        _backlog,
        above=0.25,
        shown="{:.0%} of copies refused",
        shown_by_prometheus="{{ $value | humanizePercentage }} of copies refused",
    ),
    Rule(
        "KVPagerTierFailing",
        Severity.CRITICAL,
        "A tier fails, is full or can't be written",
        "It is asked again from time to time; meanwhile its pages are misses. The log says what failed, and "
        "`kvpager disk verify` what is damaged.",
        "1 - kvpager_tier_ok",
        _failing,
        above=0.5,
        shown="failing",
        shown_by_prometheus="failing",
        hold_seconds=60,
    ),
    Rule(
        "KVPagerHitRateFallen",
        Severity.WARNING,
        "Far fewer prompt tokens are found than usual",
        "Something at the beginning of prompts has changed (a system prompt with a date, another template, salts), "
        "requests go to other servers, or pages are dropped too early.",
        f"1 - ({_hit_rate('[10m]')})\n"
        f"  / ({_hit_rate('[1d] offset 10m')})\n"
        f"  and increase(kvpager_prefix_lookup_tokens_total[10m]) > {MIN_RECENT_TOKENS}\n"
        f"  and increase(kvpager_prefix_lookup_tokens_total[1d] offset 10m) > {MIN_USUAL_TOKENS}\n"
        f"  and {_hit_rate('[1d] offset 10m')} > {_WORTH_TELLING}",
        _fall,
        above=0.5,
        shown="{:.0%} below the usual",
        shown_by_prometheus="{{ $value | humanizePercentage }} below the usual",
    ),
    Rule(
        "KVPagerQueueGrowing",
        Severity.WARNING,
        "Far more requests wait than run, and they do not get fewer",
        "Requests come faster than they are answered. Add a server, or lower max_waiting so that clients hear of it "
        "sooner.",
        'sum without (state) (kvpager_choices{state="waiting"})\n'
        '  / clamp_min(sum without (state) (kvpager_choices{state="running"}), 1)\n'
        '  and sum without (state) (delta(kvpager_choices{state="waiting"}[5m])) >= 0',
        _queue,
        above=4.0,
        shown="{:.1f} wait for each that runs",
        shown_by_prometheus='{{ $value | printf "%.1f" }} wait for each that runs',
    ),
    Rule(
        "KVPagerEngineStalled",
        Severity.CRITICAL,
        "The engine gives no sign of life",
        "Look at the log and at /health. Long prompts on a slow machine are a step at a time: lower max_batch_tokens "
        "if that is it; otherwise restart.",
        "kvpager_snapshot_age_seconds",
        lambda window: {"": window.age},
        above=30.0,
        shown="{:.0f} s without a step",
        shown_by_prometheus='{{ $value | printf "%.0f" }} s without a step',
        hold_seconds=30,
        keep_seconds=0,
    ),
)
