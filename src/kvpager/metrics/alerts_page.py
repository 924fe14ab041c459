"""The documentation page of the alerts, made from their table."""

from kvpager.metrics.alert_rules import MIN_RECENT_TOKENS, MIN_USUAL_TOKENS, RULES, Rule
from kvpager.metrics.rules_file import duration, expression

_INTRODUCTION = f"""\
# Alerts

The same alerts exist twice, from one table. The server evaluates them itself every two seconds: they stand on the
page at `/`, in its frames (`/v1/kv/frame`), and each is logged once when it begins to fire and once when it is over.
And `deploy/prometheus/kvpager.rules.yml` has them for Prometheus 2.42 or later, together with tests for
`promtool test rules`; `kvpager metrics rules` prints that file.

```yaml
# prometheus.yml
rule_files: [kvpager.rules.yml]
```

An alert fires when its value has been too large for a while, so that a moment changes nothing, and stays for a while
after, so that it does not flicker. Both evaluations are tested on the same courses of events, and agree in when they
fire; two things differ. Prometheus waits until its windows are full of samples, so after a start it may take some
minutes longer. And the usual hit rate is the mean of a day there; the server has a slow average, in which a token
counts half after six hours, since it remembers nothing longer than it runs. Neither believes a fall before
{MIN_RECENT_TOKENS:,} tokens were looked up in ten minutes, and {MIN_USUAL_TOKENS:,} before that.

What the server can't tell is that it is gone: alert on `up == 0` of its job as well.

| alert | severity | fires when | for | over after |
|---|---|---|---|---|
"""


def alerts_page() -> str:
    """The page docs/alerts.md: every rule with its condition and what to do."""
    rows = "".join(_row(rule) for rule in RULES)
    return _INTRODUCTION + rows + "".join(_section(rule) for rule in RULES)


def _row(rule: Rule) -> str:
    times = f"{duration(rule.hold_seconds)} | {duration(rule.keep_seconds)}"
    return f"| [{rule.name}](#{rule.name.lower()}) | {rule.severity.value} | {rule.summary} | {times} |\n"


def _section(rule: Rule) -> str:
    return f"\n## {rule.name}\n\n{rule.summary}. {rule.advice}\n\n```promql\n{expression(rule)}\n```\n"
