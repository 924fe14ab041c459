"""The courses of events as a file of tests for ``promtool test rules``."""

import json
import re

from kvpager.metrics.alert_rules import RULES
from kvpager.metrics.catalogue import BY_NAME
from kvpager.metrics.metric import series
from kvpager.metrics.rules_file import annotations
from tests.metrics.alert_courses import COURSES, Course, Fires

_RULE_OF_NAME = {rule.name: rule for rule in RULES}
_JOB = 'job="kvpager"'
_HEAD = """\
# Tests of kvpager.rules.yml: promtool test rules kvpager.rules.test.yml
# Made from tests/metrics/alert_courses.py by `python -m tests.metrics.promtool_file`.
rule_files: [kvpager.rules.yml]
evaluation_interval: 1m
tests:
"""


def promtool_file() -> str:
    return _HEAD + "".join(map(_test, COURSES))


def _test(course: Course) -> str:
    lines = [f"  - name: {course.name}", f"    interval: {course.step:g}s", "    input_series:"]
    for name, values in _input(course).items():
        lines += [f"      - series: {json.dumps(name)}", f"        values: {_compressed(values)}"]
    lines.append("    alert_rule_test:")
    for moment, fires in course.expected.items():
        lines += [f"      - eval_time: {moment:g}s", f"        alertname: {course.rule}"]
        lines += ["        exp_alerts: []"] if fires is None else _expected(course, fires)
    return "\n".join(lines) + "\n"


def _input(course: Course) -> dict[str, list[float]]:
    """Values at each step of every series that the rule looks at."""
    names = dict.fromkeys(re.findall(r"kvpager_\w+", _RULE_OF_NAME[course.rule].value))
    found: dict[str, list[float]] = {}
    steps = int(max(course.expected) // course.step) + 1
    for step in range(steps):
        now = step * course.step
        shown = course.at(now)
        for metric in map(BY_NAME.__getitem__, names):
            values = {(): now - shown.at} if metric.name.endswith("snapshot_age_seconds") else series(metric, shown)
            for labels, value in values.items():
                pairs = [f'{name}="{label}"' for name, label in zip(metric.labels, labels, strict=True)]
                found.setdefault(f"{metric.name}{{{','.join([_JOB, *pairs])}}}", []).append(value)
    return found


def _compressed(values: list[float]) -> str:
    """In promtool's notation: ``a+bxn`` is a and n more, each larger by b."""
    parts, place = [], 0
    while place < len(values):
        step = values[place + 1] - values[place] if place + 1 < len(values) else 0
        end = place
        while end + 1 < len(values) and values[end + 1] - values[end] == step:
            end += 1
        parts.append(f"{values[place]:.15g}{step:+.15g}x{end - place}")
        place = end + 1
    return " ".join(parts)


def _expected(course: Course, fires: Fires) -> list[str]:
    rule = _RULE_OF_NAME[course.rule]
    labels = {"severity": rule.severity.value, "job": "kvpager"} | ({"tier": fires.tier} if fires.tier else {})
    if 'kvpager_blocks{tier="device"' in rule.value or 'kvpager_evictions_total{tier="device"' in rule.value:
        labels["tier"] = "device"
    notes = annotations(rule) | {"value": fires.by_prometheus or fires.value}
    return [
        "        exp_alerts:",
        f"          - exp_labels: {json.dumps(labels)}",
        f"            exp_annotations: {json.dumps(notes)}",
    ]


if __name__ == "__main__":
    print(promtool_file(), end="")
