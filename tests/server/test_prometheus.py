"""A real Prometheus scrapes a real server: every query of the dashboard is answered, every alert can be evaluated."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from kvpager import DiskTier, HostTier
from kvpager.config.server_options import ServerOptions
from kvpager.metrics.alert_rules import RULES
from kvpager.metrics.dashboard import as_run
from kvpager.metrics.panels import OVERVIEW, Panel, panels
from tests.server.serving import Serving, serving

RULES_FILE = Path(__file__).parents[2] / "deploy" / "prometheus" / "kvpager.rules.yml"
PANELS = [*OVERVIEW, *(panel for row in panels().values() for panel in row)]
_WINDOW = "20s"
_PATIENCE = 120.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="prometheus is not installed (Debian's package has that name)"
    ),
]


@pytest.fixture(scope="module")
def scraped(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, httpx.Client]]:
    """A server with two tiers below its pool, which has had some requests of each kind, and Prometheus' API."""
    folder = tmp_path_factory.mktemp("prometheus")
    tiers = (HostTier(pages=16), DiskTier(str(tmp_path_factory.mktemp("kv")), "64MiB"))
    options = ServerOptions(port=0, metrics_compat="vllm", served_name="tiny")
    with (
        serving(model, num_blocks=24, server=options, tiers=tiers, eviction_threshold=0.2) as server,
        _prometheus(folder, server.url.removeprefix("http://")) as api,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        _wait_for(api, "count_over_time(kvpager_build_info[1m]) >= 2")
        for number in range(16):
            _ask(
                client,
                f"{number % 6} the cook writes down what is left, and the helpers peel potatoes",
                n=1 + number % 2,
            )
        asked = time.time()
        _wait_for(api, f"timestamp(kvpager_build_info) > {asked + 2}")
        yield server, api


def _ask(client: httpx.Client, prompt: str, **more: object) -> None:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 6, **more}
    assert client.post("/v1/completions", json=body).status_code == 200


@contextmanager
def _prometheus(folder: Path, target: str) -> Iterator[httpx.Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES_FILE)],
        "scrape_configs": [{"job_name": "kvpager", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    arguments = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(["prometheus", *arguments], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://{address}/api/v1", timeout=60) as api:
            stop_at = time.monotonic() + _PATIENCE
            while not _is_up(api):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < stop_at
                time.sleep(0.1)
            yield api
    finally:
        process.terminate()
        process.wait(60)


def _is_up(api: httpx.Client) -> bool:
    try:
        return api.get("/status/buildinfo").status_code == 200
    except httpx.TransportError:
        return False


def _query(api: httpx.Client, expr: str) -> list[dict[str, Any]]:
    answer = api.get("/query", params={"query": expr}).json()
    assert answer["status"] == "success", json.dumps(answer)
    assert not answer.get("warnings")
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def _wait_for(api: httpx.Client, expr: str) -> None:
    stop_at = time.monotonic() + _PATIENCE
    while not _query(api, expr):
        assert time.monotonic() < stop_at, expr
        time.sleep(0.2)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_every_query_of_the_dashboard_is_answered(panel: Panel, scraped: tuple[Serving, httpx.Client]) -> None:
    _, api = scraped
    for query in panel.queries:
        found = _query(api, as_run(query.expr, _WINDOW, 'job=~".*",instance=~".*"'))
        assert found or panel.empty_because, query.expr


def test_no_more_than_a_few_panels_may_be_empty(scraped: tuple[Serving, httpx.Client]) -> None:
    """This server has tiers, so nearly all have something to show."""
    _, api = scraped
    empty = {
        panel.title
        for panel in PANELS
        if not any(_query(api, as_run(query.expr, _WINDOW, 'job=~".*"')) for query in panel.queries)
    }
    events = {"Kv event batches", "Kv event replays"}  # are not published here
    assert empty <= {"Approximate requests", "Tier failures", "Pages in use below", *events}


def test_prometheus_has_what_the_server_counted(scraped: tuple[Serving, httpx.Client]) -> None:
    server, api = scraped
    statistics = server.engine.statistics()

    def value(expr: str) -> float:
        (found,) = _query(api, expr)
        return float(found["value"][1])

    assert value("kvpager_generated_tokens_total") == statistics.generated_tokens > 0
    assert value("kvpager_prompt_tokens_total") == statistics.prompt_tokens
    assert value("sum(kvpager_prompt_hit_tokens_total) + sum(kvpager_prompt_computed_tokens_total)") == value(
        "kvpager_prompt_tokens_total"
    )
    assert value('sum(kvpager_blocks{tier="device"}) - sum(kvpager_capacity_blocks{tier="device"})') == 0
    assert value('sum(kvpager_evictions_total{tier="device"})') > 0
    assert value('sum(kvpager_migrations_total{kind="store"})') > 0
    assert value("kvpager_snapshot_age_seconds") < 30
    assert value("vllm:generation_tokens_total") == statistics.generated_tokens
    assert value("vllm:time_to_first_token_seconds_count") == value("kvpager_time_to_first_token_seconds_count")


def test_prometheus_evaluates_every_alert(scraped: tuple[Serving, httpx.Client]) -> None:
    _, api = scraped
    stop_at = time.monotonic() + _PATIENCE
    while True:
        (group,) = api.get("/rules").json()["data"]["groups"]
        health = {rule["name"]: rule["health"] for rule in group["rules"]}
        if "unknown" not in health.values() or time.monotonic() > stop_at:
            break
        time.sleep(0.2)
    assert health == {rule.name: "ok" for rule in RULES}
    assert not any(rule.get("lastError") for rule in group["rules"])
