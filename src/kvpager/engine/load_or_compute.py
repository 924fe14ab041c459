"""Whether pages are loaded from a lower tier, computed again, or the first of them loaded: an online cost model.

Knows no cache, no requests and no clock: it is told what loads and prefills took, and says how many of the leading
pages to load so that

    max over tiers (latency + bytes / bandwidth)  +  remaining tokens / prefill rate

is least. Tiers load side by side, but a request computes only after its load, so the sum counts.

Latency and bandwidth of a tier are the straight line through the (bytes, seconds) of its loads, fitted by least squares
in which every new load makes the older ones count less (exponential forgetting, the scalar case of recursive least
squares; Ljung, "System Identification", 1999, section 11.2). What is measured is what a request waits: the time from
the decision to the border of a step where the last byte is noticed. The prefill rate is the quotient of such weighted
sums of tokens and seconds; the share of a step that its decoding requests would have taken alone is left out.

A rate that is not known yet is found out by loading. What was judged too slow is tried again now and then, since tiers
recover and no rate can be learned from what is not done; a load that is much faster than expected ends the memory of
slower ones at once.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from kvpager.types import TierKind

_KEEP = 0.8  # weight of what was known when something new is learned: half of it has gone after three
_RECOVERED = 0.25  # of the time expected: chance makes loads slow, but not that fast
_PATIENCE = 0.5  # of the time that computing takes: the wait for a tier's answer
_TRY_AGAIN = 16  # every so-many-th decision against loading all is overruled, so that rates stay known


class Reason(Enum):
    UNKNOWN = "a rate is not known yet"
    FASTER = "it takes the least time"
    TRIAL = "to learn how fast loading is now"
    ROOM = "no more blocks were available"
    BUSY = "loads that do not come hold the queue"


@dataclass(frozen=True, slots=True)
class Offer:
    """A page that could be loaded: how many of its blocks come from each tier."""

    blocks: dict[TierKind, int]

    @property
    def num_blocks(self) -> int:
        return sum(self.blocks.values())


@dataclass(frozen=True, slots=True)
class Choice:
    """The first ``num_pages`` of those offered are loaded. Seconds are expected ones, None where a rate is unknown."""

    num_pages: int
    offered: int
    reason: Reason
    load_seconds: float | None = None
    compute_seconds: float | None = None  # of the pages that are not loaded
    compute_all_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LoadCounts:
    """Decisions since the engine was opened, by what they were and why, and the tokens they were about."""

    loaded: int = 0
    partly: int = 0
    computed: int = 0
    loaded_tokens: int = 0
    computed_tokens: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


class LoadOrCompute:
    """``page_size`` tokens a page, ``block_bytes`` a block."""

    def __init__(self, page_size: int, block_bytes: int) -> None:
        self._page_size = page_size
        self._block_bytes = block_bytes
        self._loads: dict[TierKind, _Line] = {}
        self._prefill = _Quotient()  # tokens a second
        self._decode = _Quotient()  # steps a second, of those that only decode
        self._against = 0  # decisions not to load everything, since the last that did
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._last: Choice | None = None

    # -- learning -----------------------------------------------------------------------------------------------

    def loaded(self, tier: TierKind, num_blocks: int, seconds: float) -> None:
        """A load from ``tier`` took so long from the decision to its end, or has not come in that time."""
        self._loads.setdefault(tier, _Line()).add(num_blocks * self._block_bytes, seconds)

    def stepped(self, prefill_tokens: int, decode_tokens: int, seconds: float) -> None:
        """A step of the model has ended."""
        if not prefill_tokens:
            self._decode.add(1, seconds)
        elif not decode_tokens:
            self._prefill.add(prefill_tokens, seconds)
        elif self._decode.rate is not None:
            alone = min(1 / self._decode.rate, seconds / 2)  # noise must not make prefill look free
            self._prefill.add(prefill_tokens, seconds - alone)

    # -- choosing -----------------------------------------------------------------------------------------------

    def choose(self, offers: Sequence[Offer], max_blocks: int, borders: Iterable[int] | None = None) -> Choice:
        """How many of the leading ``offers`` to load. Changes nothing.

        ``max_blocks``: no more than so many may be filled. ``borders``: numbers of pages at which a load may end
        (None: anywhere); 0 and all are always allowed.
        """
        offered = len(offers)
        may_end = set(range(offered + 1) if borders is None else borders) | {0, offered}
        blocks, fits = 0, 0
        for place, offer in enumerate(offers, 1):
            blocks += offer.num_blocks
            if blocks <= max_blocks and place in may_end:
                fits = place
        times = self._times(offers)
        if times is None:
            return Choice(fits, offered, Reason.UNKNOWN if fits == offered else Reason.ROOM)
        best = min((n for n in may_end if n <= fits), key=lambda n: (sum(times[n]), -n))
        reason = Reason.ROOM if best == fits < offered else Reason.FASTER
        if best < fits and self._against % _TRY_AGAIN == _TRY_AGAIN - 1:
            best, reason = fits, Reason.TRIAL
        return Choice(best, offered, reason, times[best][0], times[best][1], times[0][1])

    def _times(self, offers: Sequence[Offer]) -> list[tuple[float, float]] | None:
        """Seconds to load the first n pages, and to compute the others, for each n; None if a rate is unknown."""
        rate = self._prefill.rate
        tiers = {tier for offer in offers for tier in offer.blocks}
        if rate is None or not tiers <= self._loads.keys():
            return None
        times, loading = [(0.0, len(offers) * self._page_size / rate)], dict.fromkeys(tiers, 0)
        for place, offer in enumerate(offers, 1):
            for tier, blocks in offer.blocks.items():
                loading[tier] += blocks * self._block_bytes
            load = max((self._loads[tier].seconds(size) for tier, size in loading.items() if size), default=0.0)
            times.append((load, (len(offers) - place) * self._page_size / rate))
        return times

    def patience(self, tokens: int) -> float | None:
        """Seconds that asking a tier for so many tokens may take; None: as long as it takes, to learn the rate.

        Half of what computing them takes, so that a tier that does not answer costs at most that much again.
        """
        rate = self._prefill.rate
        return None if rate is None else _PATIENCE * max(0, tokens) / rate

    # -- what was decided ---------------------------------------------------------------------------------------

    def note(self, choice: Choice) -> None:
        """The choice was carried out."""
        left = choice.offered - choice.num_pages
        kind = "loaded" if not left else "partly" if choice.num_pages else "computed"
        self._counts[kind] += 1
        self._counts["loaded_tokens"] += choice.num_pages * self._page_size
        self._counts["computed_tokens"] += left * self._page_size
        self._reasons[choice.reason.value] += 1
        self._against = self._against + 1 if left and choice.reason is Reason.FASTER else 0
        self._last = choice

    def counts(self) -> LoadCounts:
        return LoadCounts(**self._counts, reasons=dict(self._reasons))

    def explain(self) -> str:
        """The last decision, and the rates known now, in words."""
        if self._last is None:
            return "nothing was found in a lower tier yet"
        return f"{self._decision(self._last)}; {self._rates()}"

    def _decision(self, choice: Choice) -> str:
        tokens = f"{choice.num_pages * self._page_size} of {choice.offered * self._page_size} tokens"
        text = f"loaded {tokens}: {choice.reason.value}"
        if choice.load_seconds is None or choice.compute_seconds is None or choice.compute_all_seconds is None:
            return text
        return (
            f"{text}: {_ms(choice.load_seconds)} to load and {_ms(choice.compute_seconds)} to compute the rest, "
            f"against {_ms(choice.compute_all_seconds)} to compute all"
        )

    def _rates(self) -> str:
        found = [f"{tier.name.lower()} {line}" for tier, line in sorted(self._loads.items())]
        rate = self._prefill.rate
        return ", ".join([*found, "prefill unknown" if rate is None else f"prefill {rate:.0f} tokens/s"])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


class _Quotient:
    """What happens in a second, from weighted sums: large steps count as much as they are large."""

    def __init__(self) -> None:
        self._amount = self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        self._amount = self._amount * _KEEP + amount
        self._seconds = self._seconds * _KEEP + seconds

    @property
    def rate(self) -> float | None:
        return self._amount / self._seconds if self._seconds > 0 else None


class _Line:
    """seconds = latency + bytes / bandwidth, by least squares with forgetting. Neither is ever below 0."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0  # weighted sums; x bytes, y seconds

    def add(self, size: float, seconds: float) -> None:
        if self._n and seconds < _RECOVERED * self.seconds(size):
            self._n = self._x = self._y = self._xx = self._xy = 0.0
        self._n = self._n * _KEEP + 1
        self._x = self._x * _KEEP + size
        self._y = self._y * _KEEP + seconds
        self._xx = self._xx * _KEEP + size * size
        self._xy = self._xy * _KEEP + size * seconds

    def seconds(self, size: float) -> float:
        latency, slope = self._fit()
        return latency + slope * size

    def _fit(self) -> tuple[float, float]:
        spread = self._n * self._xx - self._x * self._x  # n^2 times the variance of the sizes
        if spread <= 1e-3 * self._x * self._x:  # all alike: what is latency can't be told
            return 0.0, self._y / self._x
        slope = (self._n * self._xy - self._x * self._y) / spread
        if slope <= 0:
            return self._y / self._n, 0.0
        latency = (self._y - slope * self._x) / self._n
        return (latency, slope) if latency >= 0 else (0.0, self._xy / self._xx)

    def __str__(self) -> str:
        latency, slope = self._fit()
        speed = f"{1e-9 / slope:.3g} GB/s" if slope > 0 else "any size at once"
        return f"{speed} after {_ms(latency)}"
