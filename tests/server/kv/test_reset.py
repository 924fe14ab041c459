"""/v1/kv/reset: what it drops, what it says of it, and who may."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.server.kv.conftest import As
from tests.server.openai.settled import assert_settled
from tests.server.serving import Serving

PROMPT = {"prompt": "a page table maps each page to a block", "max_tokens": 2, "temperature": 0}


def cached_tokens(speak_for: As) -> int:
    usage = speak_for("ops").post("/v1/completions", json=PROMPT).json()["usage"]
    count: int = usage["prompt_tokens_details"]["cached_tokens"]
    return count


def wait_for_copies(speak_for: As) -> None:
    """Pages go down beside the requests that gave them."""
    stop_at = time.monotonic() + 60
    while any(tier["pages"] == 0 for tier in speak_for("ops").get("/v1/kv/info").json()["tiers"]):
        assert time.monotonic() < stop_at, "no page has come to some tier"
        time.sleep(0.02)


def test_it_drops_what_is_named_and_says_how_much(shared: Serving, speak_for: As) -> None:
    ops = speak_for("ops")
    first = ops.post("/v1/completions", json=PROMPT).json()["choices"][0]["text"]
    assert cached_tokens(speak_for) > 0
    wait_for_copies(speak_for)
    below = ops.post("/v1/kv/reset", json={"tiers": ["host", "disk"]}).json()["cleared"]
    assert [each["tier"] for each in below] == ["host", "disk"]
    assert all(each["pages"] > 0 for each in below)
    assert cached_tokens(speak_for) > 0  # the device was not named
    (device,) = ops.post("/v1/kv/reset", json={"tiers": ["device"]}).json()["cleared"]
    assert device["tier"] == "device"
    assert device["pages"] > 0
    again = ops.post("/v1/kv/reset", json={"tiers": ["device", "host", "disk", "device"]}).json()["cleared"]
    assert again[0] == {"tier": "device", "pages": 0}
    assert cached_tokens(speak_for) == 0
    assert ops.post("/v1/completions", json=PROMPT).json()["choices"][0]["text"] == first


def test_what_runs_goes_on(shared: Serving, speak_for: As) -> None:
    ops = speak_for("ops")
    bodies = [{"prompt": [seed] * 40, "max_tokens": 40, "temperature": 0} for seed in range(2, 8)]  # more than fit

    def ask(body: dict[str, object]) -> str:
        text: str = speak_for("team-a").post("/v1/completions", json=body).json()["choices"][0]["text"]
        return text

    alone = [ask(body) for body in bodies]
    resets = 0
    with ThreadPoolExecutor(len(bodies)) as pool:
        while resets < 2:
            running = [pool.submit(ask, body) for body in bodies]
            while not all(each.done() for each in running):
                assert ops.post("/v1/kv/reset", json={"tiers": ["device", "host", "disk"]}).status_code == 200
                resets += 1
            assert [each.result() for each in running] == alone
    assert_settled(shared)


def test_nothing_is_dropped_by_mistake(shared: Serving, speak_for: As) -> None:
    cached_tokens(speak_for)
    wrong: list[object] = [
        {},
        {"tiers": []},
        {"tiers": ["device", "tape"]},
        {"tiers": "device"},
        {"tiers": ["device"], "now": True},
        {"tiers": ["device"] * 17},
        ["device"],
    ]
    for body in wrong:
        assert speak_for("ops").post("/v1/kv/reset", json=body).status_code == 400, body
    assert speak_for("ops").post("/v1/kv/reset").status_code == 415
    assert speak_for("team-a").post("/v1/kv/reset", json={"tiers": ["device"]}).status_code == 403
    assert cached_tokens(speak_for) > 0


def test_it_is_off_by_default(client: httpx.Client) -> None:
    answer = client.post("/v1/kv/reset", json={"tiers": ["device"]})
    assert answer.status_code == 403
    assert "--allow-reset" in answer.json()["error"]["message"]
