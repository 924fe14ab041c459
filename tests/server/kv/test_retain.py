"""/v1/kv/retain: verdicts, own pages only, and a part of the pins for each."""

import httpx

from tests.server.kv.conftest import As
from tests.server.serving import Serving

TEXT = "the cook writes down what is left, and the helpers peel potatoes until noon"
MESSAGES = [{"role": "system", "content": TEXT}, {"role": "user", "content": "why?"}]


def retain(client: httpx.Client, **body: object) -> dict[str, object]:
    answer = client.post("/v1/kv/retain", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


def test_a_retention_is_answered_listed_and_released(shared: Serving, speak_for: As) -> None:
    client = speak_for("team-a")
    made = retain(client, prompt=list(range(20)), stop=9, pin=True, priority=10, seconds=600, ttl=1200)
    assert (made["verdict"], made["start"], made["stop"], made["pages"]) == ("accepted", 0, 12, 3)
    clipped = retain(client, prompt=list(range(21)), priority=50)
    assert clipped["verdict"] == "clipped"
    assert "fill no page" in str(clipped["reason"])
    assert retain(client, messages=MESSAGES, priority=50)["verdict"] != "refused"
    listed = client.get("/v1/kv/retain").json()["data"]
    assert [each["id"] for each in listed][:2] == [made["id"], clipped["id"]]
    for one in listed:
        assert client.delete("/v1/kv/retain", params={"id": one["id"]}).json()["released"]
        assert client.delete("/v1/kv/retain", params={"id": one["id"]}).status_code == 404
    assert client.get("/v1/kv/retain").json()["data"] == []


def test_a_tenant_reaches_its_own_pages_only(shared: Serving, speak_for: As) -> None:
    a, b = speak_for("team-a"), speak_for("team-b")

    def cached(client: httpx.Client, **more: object) -> int:
        body = {"prompt": TEXT, "max_tokens": 2, "temperature": 0, **more}
        usage = client.post("/v1/completions", json=body).json()["usage"]
        count: int = usage["prompt_tokens_details"]["cached_tokens"]
        return count

    assert cached(a) == cached(b) == 0
    assert cached(a) == cached(b) > 0
    made = retain(b, prompt=TEXT, ttl=0)  # b's content is to go at once
    assert made["verdict"] != "refused"
    assert cached(a) > 0
    assert cached(b) == 0
    kept = retain(b, prompt=TEXT, priority=20)
    assert a.delete("/v1/kv/retain", params={"id": str(kept["id"])}).status_code == 404
    assert b.delete("/v1/kv/retain", params={"id": str(kept["id"])}).status_code == 200
    assert cached(a, cache_salt="x") == 0
    assert cached(a, cache_salt="x") > 0
    assert cached(a, cache_salt="y") == 0


def test_pins_and_priorities_are_bounded(shared: Serving, speak_for: As) -> None:
    client = speak_for("team-a")
    most = shared.engine.cache.retention.max_pinned // 4
    page = shared.engine.layout.page_size
    fits = retain(client, prompt=list(range(most * page)), pin=True)
    assert fits["verdict"] == "accepted"
    refused = retain(client, prompt=list(range(100, 100 + page)), pin=True)
    assert refused["verdict"] == "refused"
    assert str(most) in str(refused["reason"])
    assert retain(speak_for("team-b"), prompt=list(range(page)), pin=True)["verdict"] == "accepted"
    assert client.post("/v1/kv/retain", json={"prompt": TEXT, "priority": 51}).status_code == 403
    assert retain(speak_for("ops"), prompt=TEXT, priority=100)["verdict"] != "refused"
    for name in ("team-a", "team-b", "ops"):
        for each in speak_for(name).get("/v1/kv/retain").json()["data"]:
            speak_for(name).delete("/v1/kv/retain", params={"id": each["id"]})
    assert shared.engine.cache.retention.num_pinned == 0


def test_one_tenant_leaves_room_for_the_others(shared: Serving, speak_for: As) -> None:
    client, page = speak_for("team-a"), shared.engine.layout.page_size
    most = shared.engine.cache.retention.max_size // 4
    verdicts, named = [], 0
    while named <= most:
        verdicts.append(retain(client, prompt=[named % 300] * (100 * page), priority=50)["verdict"])
        named += 100
    assert set(verdicts[:-1]) == {"accepted"}
    assert verdicts[-1] == "refused"
    assert retain(speak_for("team-b"), prompt=[7] * (100 * page), priority=50)["verdict"] == "accepted"
    for name in ("team-a", "team-b"):
        for each in speak_for(name).get("/v1/kv/retain").json()["data"]:
            assert speak_for(name).delete("/v1/kv/retain", params={"id": each["id"]}).status_code == 200


def test_what_is_wrong_is_refused_by_name(shared: Serving, speak_for: As) -> None:
    client = speak_for("team-a")
    pin = {"pin": True}
    bodies: dict[str | None, list[dict[str, object]]] = {
        "prompt": [
            {**pin},
            {**pin, "prompt": TEXT, "messages": MESSAGES},
            {**pin, "prompt": ["a", "b"]},
            {**pin, "prompt": [10**6]},
            {**pin, "prompt": [1] * 600},
        ],
        "priority": [{"prompt": TEXT, "priority": 101}, {"prompt": TEXT, "priority": True}],
        "ttl": [{"prompt": TEXT, "ttl": -1}],
        "seconds": [{**pin, "prompt": TEXT, "seconds": 0}],
        "block": [{**pin, "prompt": TEXT, "block": 3}],
        None: [{"prompt": TEXT}, {**pin, "prompt": TEXT, "start": 9, "stop": 9}],
    }
    for param, wrong in bodies.items():
        for body in wrong:
            answer = client.post("/v1/kv/retain", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body


def test_quotas_are_for_operators(shared: Serving, speak_for: As) -> None:
    ops, body = speak_for("ops"), {"tenant": "team-b", "capacity": "50%", "weight": 2.5}
    assert speak_for("team-b").post("/v1/kv/quota", json=body).status_code == 403
    assert ops.post("/v1/kv/quota", json=body).json() == {"verdict": "accepted", "reason": ""}
    assert ops.post("/v1/kv/quota", json=body | {"capacity": "much"}).json()["error"]["param"] == "capacity"
    assert ops.post("/v1/kv/quota", json={"tenant": "team-b"}).json()["verdict"] == "accepted"
