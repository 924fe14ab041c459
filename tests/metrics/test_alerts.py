"""The product's own alerts: the courses that Prometheus' rules are tested on, what is logged, what is remembered."""

import logging
import random

import pytest

from kvpager.metrics.alert_rules import RULES, Rule, Severity
from kvpager.metrics.alerts import Alerts
from kvpager.metrics.baseline import Baseline
from kvpager.metrics.window import Window
from tests.metrics.alert_courses import COURSES, Course, Fires
from tests.metrics.snapshots import pool, snapshot

_STEP = 15.0


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.name)
def test_alerts_fire_where_prometheus_would_let_them(course: Course) -> None:
    alerts = Alerts(wall_clock=lambda: 1000.0)
    for step in range(int(max(course.expected) // course.step) + 1):
        now = step * course.step
        firing = alerts.update(course.at(now), now)
        if now in course.expected:
            expected = course.expected[now]
            shown = [Fires(alert.value, alert.tier) for alert in firing if alert.name == course.rule]
            assert shown == ([] if expected is None else [Fires(expected.value, expected.tier)]), now
            assert tuple(firing) == alerts.firing


def test_only_what_is_the_matter_fires() -> None:
    for course in (course for course in COURSES if any(course.expected.values())):
        alerts = Alerts()
        for step in range(int(max(course.expected) // course.step) + 1):
            names = {alert.name for alert in alerts.update(course.at(step * course.step), step * course.step)}
            assert names <= {course.rule}


def test_firing_and_clearing_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = iter(range(1000, 9000, 15))
    now_of_wall = 0.0
    alerts = Alerts(wall_clock=lambda: now_of_wall)
    for now in (float(second) for second in range(0, 1200, 15)):
        now_of_wall = next(clock)
        alerts.update(snapshot(now, blocks=pool(100, used=97 if now < 600 else 10)), now)
    fired, cleared = caplog.records
    assert fired.levelname == "WARNING"
    assert fired.getMessage() == (
        "alert KVPagerMemoryNearlyFull: Nearly all blocks of the device are in use (97% of blocks in use)"
    )
    assert cleared.levelname == "INFO"
    assert cleared.getMessage() == "alert KVPagerMemoryNearlyFull is over, after 420 s"


@pytest.mark.parametrize("seed", range(20))
def test_random_courses_agree_with_a_plain_reading_of_the_rule(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """It fires once the last ``hold`` looks were all above, and is over once the last ``keep`` were all not."""
    caplog.set_level(logging.INFO)
    generator = random.Random(seed)
    hold, keep = generator.randint(0, 4), generator.randint(0, 4)
    values: list[float] = []
    rule = Rule(
        "KVPagerTest", Severity.WARNING, "A test", "Nothing.", "x", lambda window: {"": values[-1]}, above=0.5,
        hold_seconds=10 * hold, keep_seconds=10 * keep,
    )  # fmt: skip
    alerts, fires, changes = Alerts(rules=(rule,), wall_clock=lambda: 0.0), False, 0
    for step in range(200):
        values.append(float(generator.random() < 0.7))
        shown = alerts.update(snapshot(10.0 * step), 10.0 * step)
        above = [value > 0.5 for value in values]
        before = fires
        if fires:
            fires = above[-1] or any(above[-1 - keep :])
        else:
            fires = step >= hold and all(above[-1 - hold :])
        changes += fires != before
        assert bool(shown) == fires, f"seed={seed} step={step}"
    assert len(caplog.records) == changes


def test_an_alert_does_not_flicker_with_its_value() -> None:
    alerts = Alerts(wall_clock=lambda: 5.0)
    seen = []
    for step in range(80):
        used = 97 if step < 30 or step % 4 else 50
        (alert,) = alerts.update(snapshot(15.0 * step, blocks=pool(100, used=used)), 15.0 * step) or [None]
        seen.append(alert is not None)
    assert seen == sorted(seen)
    assert seen[-1]
    assert alerts.firing[0].as_dict() == {
        "name": "KVPagerMemoryNearlyFull",
        "severity": "warning",
        "summary": "Nearly all blocks of the device are in use",
        "since": 5.0,
        "value": "97% of blocks in use",
    }


def test_critical_alerts_come_first() -> None:
    alerts = Alerts()
    full = snapshot(0.0, blocks=pool(100, used=97))
    for now in range(0, 400, 10):
        alerts.update(full, float(now))
    assert [alert.severity for alert in alerts.firing] == ["critical", "warning"]


def test_the_window_is_bounded() -> None:
    window = Window(Baseline(min_tokens=1))
    for number in range(3000):
        window.add(snapshot(0.5 * number), 0.5 * number)
    assert len(window._kept) <= 122


def test_nothing_is_said_of_a_short_time() -> None:
    window = Window(Baseline(min_tokens=1))
    for now in (0.0, 10.0, 20.0):
        window.add(snapshot(now, engine={"preemptions": int(now)}), now)
    assert window.rate(lambda s: s.engine.preemptions, 300) is None
    window.add(snapshot(40.0, engine={"preemptions": 40}), 40.0)
    assert window.rate(lambda s: s.engine.preemptions, 300) == 1.0  # the control


def test_the_baseline_forgets_slowly_and_keeps_quiet_until_it_knows() -> None:
    baseline = Baseline(min_tokens=1000, half_life=100)
    assert baseline.hit_rate is None
    baseline.add(999, 999, 1)
    assert baseline.hit_rate is None
    baseline.add(1000, 1000, 0)
    assert baseline.hit_rate == 1.0
    baseline.add(2000, 0, 100)  # what was known counts half
    assert baseline.hit_rate == pytest.approx(999.5 / 2999.5, abs=0.01)
    baseline.add(0, 0, 50)
    assert baseline.hit_rate == pytest.approx(999.5 / 2999.5, abs=0.01)  # a quiet time changes nothing
    baseline.add(0, 0, 1000)
    assert baseline.hit_rate is None  # until little is left of it


def test_names_and_texts_of_rules() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.name.startswith("KVPager")
        assert rule.advice.endswith(".")
        assert rule.shown.format(0.5)
