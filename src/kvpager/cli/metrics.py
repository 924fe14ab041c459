"""What a server measures, and what goes with it: alerts for Prometheus, a dashboard for Grafana, their documents."""

import argparse
import json

from kvpager.cli.arguments import add_common, chosen_options, did_you_mean
from kvpager.cli.table import format_table
from kvpager.errors import ConfigError

_ACTIONS = ("list", "rules", "dashboard", "page", "alerts-page")
_ACTIONS_HELP = """actions:
  list         every metric of /metrics, with what it means
  rules        alerts for Prometheus: deploy/prometheus/kvpager.rules.yml
  dashboard    for Grafana: deploy/grafana/kvpager.json
  page         docs/metrics.md
  alerts-page  docs/alerts.md"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _ACTIONS_HELP
    parser.add_argument("action", metavar="ACTION", help=", ".join(_ACTIONS))
    add_common(parser, names=())


def run(arguments: argparse.Namespace) -> int:
    chosen_options(arguments)  # nothing here needs them, but a wrong file or variable is wrong everywhere
    if arguments.action not in _ACTIONS:
        raise ConfigError(f"unknown action {arguments.action!r}; {did_you_mean(arguments.action, _ACTIONS)}")
    if arguments.action == "list":
        _list(as_json=arguments.json)
        return 0
    text = _made(arguments.action)
    print(json.dumps({arguments.action: text}) if arguments.json else text, end="\n" if arguments.json else "")
    return 0


def _list(*, as_json: bool) -> None:
    from kvpager.metrics.catalogue import CATALOGUE

    if as_json:
        rows = [{"name": m.name, "kind": m.kind.value, "labels": m.labels, "meaning": m.help} for m in CATALOGUE]
        print(json.dumps(rows))
    else:
        table = [[m.name, m.kind.value, ",".join(m.labels), m.help] for m in CATALOGUE]
        print(format_table(table, ("metric", "kind", "labels", "meaning")))


def _made(action: str) -> str:
    from kvpager.metrics.alerts_page import alerts_page
    from kvpager.metrics.dashboard import dashboard
    from kvpager.metrics.metrics_page import metrics_page
    from kvpager.metrics.rules_file import rules_file

    return {"rules": rules_file, "dashboard": dashboard, "page": metrics_page, "alerts-page": alerts_page}[action]()
