"""/metrics of a real server: numbers that add up over real requests, for operators, quickly."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kvpager import HostTier
from kvpager.config.server_options import ServerOptions
from kvpager.metrics.catalogue import BY_FAMILY, BY_NAME
from kvpager.metrics.metric import MetricKind
from tests.server.serving import Serving, serving

Samples = dict[str, float]
_GAUGE = BY_NAME["kvpager_blocks"]


def scrape(client: httpx.Client) -> Samples:
    """Values by what stands before them in the text: ``name{label="value"}``."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    return {
        sample.name + "".join(f"|{value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def total(samples: Samples, name: str) -> float:
    return sum(value for key, value in samples.items() if key.partition("|")[0] == f"kvpager_{name}")


def ask(client: httpx.Client, prompt: str, **more: object) -> dict[str, Any]:
    body = {"model": client.get("/v1/models").json()["data"][0]["id"], "prompt": prompt, "max_tokens": 8, **more}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    answered: dict[str, Any] = answer.json()
    return answered


def test_the_numbers_add_up_over_requests(model: str) -> None:
    with serving(model, num_blocks=48) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        before = scrape(client)
        answers = [ask(client, f"the moon changes its shape {number % 3}") for number in range(6)]
        answers.append(ask(client, "a page table maps each page to a block", n=2))
        after = scrape(client)
    for name, metric in BY_NAME.items():
        if metric.kind is MetricKind.COUNTER:
            for key in (key for key in before if key.partition("|")[0] == name):
                assert after[key] >= before[key], key
    usages = [answer["usage"] for answer in answers]
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    generated = sum(usage["completion_tokens"] for usage in usages)
    assert total(after, "prompt_tokens_total") == prompts
    assert total(after, "prompt_computed_tokens_total") + total(after, "prompt_hit_tokens_total") == prompts
    assert total(after, "prompt_hit_tokens_total") > 0
    assert total(after, "prefix_hit_tokens_total") == total(after, "prompt_hit_tokens_total")
    assert total(after, "generated_tokens_total") == generated
    # The last token of each choice is not computed, and nothing was preempted.
    assert total(after, "preemptions_total") == 0
    assert total(after, "computed_tokens_total") == total(after, "prompt_computed_tokens_total") + generated - 8
    assert total(after, "requests_received_total") == len(usages)
    assert total(after, "choices_finished_total") == len(usages) + 1
    assert total(after, "time_to_first_token_seconds_count") == len(usages) + 1
    assert total(after, "queue_time_seconds_count") == len(usages)
    assert total(after, "inter_token_latency_seconds_count") == generated - len(usages) - 1
    assert total(after, "request_generated_tokens_sum") == generated
    assert total(after, "blocks") == total(after, "capacity_blocks") == 48
    assert after["kvpager_blocks|used|device"] == after["kvpager_blocks|moving|device"] == 0
    assert after["kvpager_blocks|cached|device"] > 0
    assert total(after, "waste_slots") == total(after, "shared_blocks") == 0
    assert total(after, "faults_total") > 0
    assert total(after, "tier_used_bytes") == (48 - after["kvpager_blocks|free|device"]) * total(after, "block_bytes")


def test_a_server_shows_the_whole_catalogue(client: httpx.Client) -> None:
    shown = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    only_with_events = {"kvpager_kv_event_batches", "kvpager_kv_event_replays"}
    assert {name for name in shown if name.startswith("kvpager_")} == {*BY_FAMILY} - only_with_events
    assert sum(len(family.samples) for family in shown.values()) < 1000


def test_evictions_have_their_policy_and_reason(model: str) -> None:
    with serving(model, num_blocks=24) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        for number in range(8):
            ask(client, f"{number} the cook writes down what is left, and the helpers peel potatoes")
        after = scrape(client)
    dropped = {key: value for key, value in after.items() if key.startswith("kvpager_evictions_total") and value}
    assert dropped
    assert all(key.split("|")[3] == "device" for key in dropped)
    assert {key.split("|")[2] for key in dropped} <= {"background", "direct"}


def test_vllm_names_are_added_on_request(model: str) -> None:
    with serving(model, server=ServerOptions(port=0, metrics_compat="vllm", served_name="tiny")) as server:
        text = httpx.get(server.url + "/metrics", timeout=60).text
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in text


def test_openmetrics_is_negotiated(client: httpx.Client) -> None:
    answer = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    assert client.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


def test_a_scrape_is_quick(client: httpx.Client) -> None:
    """Under 20 ms of processor time, the client's included; ten times that is the bound here."""
    client.get("/metrics")
    seconds = []
    for _ in range(5):
        begin = process_time()
        client.get("/metrics")
        seconds.append(process_time() - begin)
    assert min(seconds) < 0.2


def test_nothing_of_a_request_is_shown(server: Serving, client: httpx.Client) -> None:
    ask(client, "zanzibar", cache_salt="quagmire")
    text = client.get("/metrics").text
    assert "kvpager_prompt_tokens_total" in text  # the control
    for word in ("zanzibar", "quagmire", "cmpl-"):
        assert word not in text


def test_every_scrape_adds_up_while_requests_run(model: str) -> None:
    prompts = [f"{number % 4} the cook writes down what is left, and the helpers peel" for number in range(12)]
    scrapes = []
    with (
        serving(model, num_blocks=32, tiers=(HostTier(pages=16),), max_running=4) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
        ThreadPoolExecutor(6) as pool,
    ):
        answers = [pool.submit(ask, client, prompt, n=1 + place % 2) for place, prompt in enumerate(prompts)]
        while not all(answer.done() for answer in answers):
            scrapes.append(scrape(client))
        usages = [answer.result()["usage"] for answer in answers]
        scrapes.append(scrape(client))
    for samples in scrapes:
        for tier, count in (("device", 32), ("host", 16)):
            states = [value for key, value in samples.items() if key.startswith("kvpager_blocks|") and tier in key]
            assert sum(states) == samples[f"kvpager_capacity_blocks|{tier}"] == count
        found = total(samples, "prompt_computed_tokens_total") + total(samples, "prompt_hit_tokens_total")
        assert found == total(samples, "prompt_tokens_total")
    names = {key for key in scrapes[-1] if BY_NAME.get(key.partition("|")[0], _GAUGE).kind is MetricKind.COUNTER}
    for earlier, later in pairwise(scrapes):
        assert all(later[key] >= earlier[key] for key in names & earlier.keys())
    assert total(scrapes[-1], "generated_tokens_total") == sum(usage["completion_tokens"] for usage in usages)
    assert total(scrapes[-1], "prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert total(scrapes[-1], "migrations_total") > 0
    assert total(scrapes[-1], "choices_finished_total") == 18


def test_a_stalled_engine_is_scraped_and_shows_its_age(model: str) -> None:
    is_stuck, may_go_on = threading.Event(), threading.Event()

    def stick(engine: object) -> None:
        is_stuck.set()
        may_go_on.wait(60)

    with serving(model) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        fresh = scrape(client)["kvpager_snapshot_age_seconds"]
        server.service.thread.before_turn = stick
        try:
            assert is_stuck.wait(30)
            assert scrape(client)["kvpager_snapshot_age_seconds"] > max(1.5, fresh)
        finally:
            server.service.thread.before_turn = None
            may_go_on.set()


def test_only_operators_may_scrape(model: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("team-a sk-team-a-0123456789\nops sk-ops-0123456789abc operator\n")
    keys.chmod(0o600)
    with serving(model, server=ServerOptions(port=0, api_keys=keys)) as server:
        for key, status in (("", 401), ("sk-wrong-0123456789", 401), ("sk-team-a-0123456789", 403)):
            answer = httpx.get(
                server.url + "/metrics", headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=60
            )
            assert answer.status_code == status
            assert "kvpager_" not in answer.text
        answer = httpx.get(
            server.url + "/metrics", headers={"Authorization": "Bearer sk-ops-0123456789abc"}, timeout=60
        )
        assert answer.status_code == 200
        assert "kvpager_blocks" in answer.text
        assert "team-a" not in answer.text
