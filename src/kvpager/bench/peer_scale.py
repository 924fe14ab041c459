"""How much of the peers' workloads is run: shares of their requests, rounds, memory. Knows no engine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvpager.bench.report import SEED
from kvpager.bench.workloads import SYSTEM_TOKENS, Ask, Workload, workload
from kvpager.errors import ConfigError

PREFIX_HIT = "prefix_hit"
AT_ONCE = "at_once"
_HITS = 6
_ROOM_REQUESTS = 24

# The share of its requests that lets one round of the fastest peer take about twenty seconds on two cores, and all of
# them with four peers half an hour. As many requests at once as its name says are the point of 128x128: it is run
# whole, and takes a minute.
_SHARES = {
    "1x128": 1.0,
    "32x128": 1.0,
    "128x128": 1.0,
    "16x2048": 0.375,
    "shared_prefix": 0.5,
    "conversations": 0.4,
    "azure": 0.06,
    PREFIX_HIT: 1.0,
    AT_ONCE: 1.0,
}
# Seconds of the fastest peer for all of them, on record (docs/log.md): for the estimate at the start only.
_SECONDS = {
    "1x128": 2.4,
    "32x128": 19.0,
    "128x128": 66.0,
    "16x2048": 76.0,
    "shared_prefix": 36.0,
    "conversations": 57.0,
    "azure": 385.0,
    PREFIX_HIT: 6.0,
    AT_ONCE: 20.0,
}
_LEAST_SLOW_SECONDS = 20.0  # before it no other peer is stopped; and not before the fastest one's time has passed
_STEP_SECONDS = 8.0  # that such a peer needs more, for it is stopped between two steps
_SLOW_TIMES = 3.0  # the fastest one's seconds: what the others need where they are not stopped
_BEFORE_SECONDS = {"shared_prefix": 12.0}  # of an engine in the mean, for what is answered before the clock starts
_START_SECONDS = 30.0  # of an engine, its tokens compared
_COUNT_SECONDS = 38.0  # of an engine, started again for counting requests at once


@dataclass(frozen=True, slots=True)
class Scale:
    """``shares``: of each workload's requests. ``shorten``: its answers are divided by that. ``seconds``: that all
    rounds of a workload but its first may take, where there are more than two. ``room_bytes``: KV memory in which
    requests are counted that run at once. ``checked``: requests whose tokens are compared, ``checked_tokens`` of
    each."""

    shares: Mapping[str, float]
    traces: str | None = None
    rounds: int = 3
    seconds: float = 60.0
    shorten: int = 1
    kv_bytes: int = 1 << 30
    room_bytes: int = 64 << 20
    checked: int = 4
    checked_tokens: int = 64

    def has_time(self, number: int, seconds: float) -> bool:
        """For round ``number``, after those behind the first took so long: it takes as long as one of them."""
        return number < 2 or seconds * number / (number - 1) <= self.seconds

    def load(self, name: str, number: int) -> Workload:
        """The workload for a round. Each has token ids of its own, the same for everybody."""
        seed = SEED + number
        if name == PREFIX_HIT:
            return prefix_hits(seed)
        found = workload(name, scale=self.shares[name], seed=seed, traces=self.traces)
        return shortened(found, self.shorten)

    def check_load(self) -> Workload:
        """Before all rounds, with ids that none of them has."""
        asks = workload("32x128", scale=self.checked / 32, seed=SEED + 1000).asks
        return Workload("check", tuple(replace(ask, max_tokens=self.checked_tokens) for ask in asks), is_timed=False)

    def room_load(self) -> Workload:
        """Requests of 128 + 32 tokens, more than fit at once."""
        asks = workload("32x128", scale=_ROOM_REQUESTS / 32, seed=SEED + 2000).asks
        return Workload("room", tuple(replace(ask, max_tokens=32) for ask in asks), is_timed=False)


def estimated_seconds(scale: Scale, peers: Mapping[str, int], engines: int) -> float:
    """Of a run on two cores as on record. ``peers``: how many take part in a workload. In its first round we and they
    run, in those after it we and the fastest. ``engines``: that are started, ours included."""
    total = _START_SECONDS * engines
    for name, share in scale.shares.items():
        fastest = _SECONDS[name] * share / scale.shorten
        if name == AT_ONCE:
            total += (peers[name] + 1) * _COUNT_SECONDS
            continue
        further = [n for n in range(1, scale.rounds) if scale.has_time(n, 2 * fastest * (n - 1))]
        slow = min(max(_LEAST_SLOW_SECONDS, fastest) + _STEP_SECONDS, _SLOW_TIMES * fastest)
        total += 2 * fastest * (1 + len(further)) + max(0, peers[name] - 1) * slow
        total += _BEFORE_SECONDS.get(name, 0.0) * (peers[name] + 1)
    return total


def scale_of(quick: bool, workloads: str | None, share: str | None, traces: str | None) -> Scale:
    """Raises ConfigError for a workload that is not known, or a share that is none."""
    names = list(_SHARES) if workloads is None else [name.strip() for name in workloads.split(",")]
    for name in names:
        if name not in _SHARES:
            raise ConfigError(f"unknown workload {name!r}; there are {', '.join(_SHARES)}")
    shares = {name: _SHARES[name] if share is None else _share(share) for name in names}
    if not quick:
        return Scale(shares, traces)
    few = {name: min(each, 0.125) for name, each in shares.items()}
    return Scale(few, traces, rounds=1, shorten=4, checked=2, checked_tokens=16)


def _share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise ConfigError(f"share must be a number above 0 and at most 1, not {text!r}")
    return found


def shortened(load: Workload, part: int) -> Workload:
    asks = tuple(replace(ask, max_tokens=max(1, ask.max_tokens // part)) for ask in load.asks)
    return replace(load, asks=asks)


def prefix_hits(seed: int) -> Workload:
    """One after the other: a question behind a long system prompt, then others behind the same one. All but the first
    find its pages, where an engine shares them."""
    whole = workload("shared_prefix", scale=(_HITS + 1) / 64, seed=seed + 3000).asks
    assert all(ask.prompt[:SYSTEM_TOKENS] == whole[0].prompt[:SYSTEM_TOKENS] for ask in whole)
    asks = tuple(Ask(ask.prompt, 4, conversation=0, turn=turn) for turn, ask in enumerate(whole))
    return Workload(PREFIX_HIT, asks, is_timed=True)
