"""Prints what goes with the metrics of a server: alerts for Prometheus, a dashboard for Grafana, their documentation.

`rules`: deploy/prometheus/kvpager.rules.yml. `dashboard`: deploy/grafana/kvpager.json. `page` and `alerts-page`: docs.
"""

import argparse
from collections.abc import Callable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("rules", "dashboard", "page", "alerts-page"), help="what to print")


def run(arguments: argparse.Namespace) -> int:
    from kvpager.metrics.alerts_page import alerts_page
    from kvpager.metrics.dashboard import dashboard
    from kvpager.metrics.metrics_page import metrics_page
    from kvpager.metrics.rules_file import rules_file

    made: dict[str, Callable[[], str]] = {
        "rules": rules_file,
        "dashboard": dashboard,
        "page": metrics_page,
        "alerts-page": alerts_page,
    }
    print(made[arguments.what](), end="")
    return 0
