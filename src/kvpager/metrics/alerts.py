"""The alerts of the product itself, without Prometheus: the table of rules over the snapshots of the last minutes.

    quiet ---- above ----> pending ---- for hold_seconds ----> firing ---- not for keep_seconds ----> quiet
      ^                       |                                  logged                                logged
      +------ not above ------+

What Prometheus calls ``for`` and ``keep_firing_for``. Knows no clock: whoever calls ``update`` brings the time.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvpager.metrics.alert_rules import MIN_USUAL_TOKENS, RULES, Rule
from kvpager.metrics.baseline import Baseline
from kvpager.metrics.snapshot import Snapshot
from kvpager.metrics.window import Window

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Alert:
    """``since``: unix seconds when it began to fire. ``value`` in words. ``tier``: whose alert it is, or ""."""

    name: str
    severity: str
    summary: str
    since: float
    value: str
    tier: str = ""

    def as_dict(self) -> dict[str, object]:
        """For the frames of the page."""
        return {
            "name": self.name,
            "severity": self.severity,
            "summary": f"{self.summary} ({self.tier})" if self.tier else self.summary,
            "since": round(self.since, 3),
            "value": self.value,
        }


@dataclass(slots=True)
class _Course:
    """Of one rule and tier, in seconds of the caller's clock. ``quiet_since``: while it fires and is not above."""

    above_since: float
    value: float
    quiet_since: float | None = None
    fired: float | None = None  # unix seconds


class Alerts:
    """Of one server. ``wall_clock``: unix seconds, for showing only."""

    def __init__(self, rules: Sequence[Rule] = RULES, wall_clock: Callable[[], float] = time.time) -> None:
        self._rules = rules
        self._wall_clock = wall_clock
        self._window = Window(Baseline(min_tokens=MIN_USUAL_TOKENS))
        self._courses: dict[tuple[str, str], _Course] = {}  # by rule and tier: pending and firing ones
        self._firing: tuple[Alert, ...] = ()

    @property
    def firing(self) -> tuple[Alert, ...]:
        """As of the last update, critical ones first. Any thread."""
        return self._firing

    def update(self, snapshot: Snapshot, now: float) -> list[Alert]:
        """Looks at a snapshot, every few seconds; returns what fires. ``now``: seconds of the clock of ``snapshot.at``,
        later than that where the engine gave no newer one."""
        self._window.add(snapshot, now)
        for rule in self._rules:
            values = rule.measure(self._window)
            tiers = {tier for name, tier in self._courses if name == rule.name}
            for tier in {**values, **dict.fromkeys(tiers)}:
                self._follow(rule, tier, values.get(tier), now)
        self._firing = tuple(
            _alert(rule, tier, course)
            for rule in sorted(self._rules, key=lambda rule: rule.severity.value)
            for (name, tier), course in self._courses.items()
            if name == rule.name and course.fired is not None
        )
        return list(self._firing)

    def _follow(self, rule: Rule, tier: str, value: float | None, now: float) -> None:
        course = self._courses.get((rule.name, tier))
        if value is not None and value > rule.above:
            if course is None:
                course = self._courses[rule.name, tier] = _Course(now, value)
            course.value, course.quiet_since = value, None
            if course.fired is None and now - course.above_since >= rule.hold_seconds:
                course.fired = self._wall_clock()
                _log.warning("alert %s: %s (%s)", _title(rule, tier), rule.summary, rule.shown.format(value))
        elif course is not None and course.fired is None:
            del self._courses[rule.name, tier]
        elif course is not None and course.fired is not None:
            if course.quiet_since is None:
                course.quiet_since = now
            if now - course.quiet_since >= rule.keep_seconds:
                _log.info("alert %s is over, after %.0f s", _title(rule, tier), self._wall_clock() - course.fired)
                del self._courses[rule.name, tier]


def _title(rule: Rule, tier: str) -> str:
    return f"{rule.name} of tier {tier}" if tier else rule.name


def _alert(rule: Rule, tier: str, course: _Course) -> Alert:
    assert course.fired is not None
    return Alert(rule.name, rule.severity.value, rule.summary, course.fired, rule.shown.format(course.value), tier)
