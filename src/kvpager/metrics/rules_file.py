"""The table of alerts as a file of rules for Prometheus 2.42 or later. Writes YAML itself: it needs no library."""

import json

from kvpager.metrics.alert_rules import RULES, Rule

_HEAD = """\
# Alerts of kvpager, for Prometheus 2.42 or later: name this file under rule_files in prometheus.yml.
# Made from the table in kvpager/metrics/alert_rules.py by `kvpager metrics rules`; docs/alerts.md explains them.
groups:
  - name: kvpager
    rules:
"""


def expression(rule: Rule) -> str:
    """What Prometheus evaluates: gives a value where the rule's is too large."""
    return f"(\n  {rule.value}\n) > {rule.above:g}".replace("\n  ", "\n    ").replace("(\n    ", "(\n  ", 1)


def rules_file() -> str:
    return _HEAD + "".join(map(_rule, RULES))


def _rule(rule: Rule) -> str:
    expr = "".join(f"          {line}\n" for line in expression(rule).splitlines())
    keep = f"        keep_firing_for: {duration(rule.keep_seconds)}\n" if rule.keep_seconds else ""
    notes = "".join(f"          {name}: {json.dumps(text)}\n" for name, text in annotations(rule).items())
    return (
        f"      - alert: {rule.name}\n"
        f"        expr: |-\n{expr}"
        f"        for: {duration(rule.hold_seconds)}\n{keep}"
        f"        labels:\n          severity: {rule.severity.value}\n"
        f"        annotations:\n{notes}"
    )


def annotations(rule: Rule) -> dict[str, str]:
    return {"summary": rule.summary, "description": rule.advice, "value": rule.shown_by_prometheus}


def duration(seconds: int) -> str:
    return f"{seconds // 60}m" if seconds and seconds % 60 == 0 else f"{seconds}s"
