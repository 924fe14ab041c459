"""What /v1/kv/info shows to whom."""

from tests.server.kv.conftest import As
from tests.server.serving import Serving


def test_an_operator_sees_a_memory_that_adds_up(shared: Serving, speak_for: As) -> None:
    told = speak_for("ops").get("/v1/kv/info").json()
    layout = shared.engine.layout
    assert (told["page_size"], told["bytes_per_token"]) == (layout.page_size, layout.bytes_per_token)
    pool = told["pool"]
    assert pool["free"] + pool["used"] + pool["cached"] + pool["moving"] == pool["total"] == 64
    assert [tier["name"] for tier in told["tiers"]] == ["device", "host", "disk"]
    for tier in told["tiers"]:
        assert tier["used_bytes"] <= tier["capacity_bytes"]
        assert tier["pages"] <= tier["capacity_pages"]
        assert tier["capacity_tokens"] == tier["capacity_pages"] * layout.page_size
    assert told["tiers"][0]["capacity_bytes"] == 64 * layout.block_bytes
    assert told["policy"]["eviction"] == "lru"
    assert told["options"]["max_running"] == shared.engine.options.max_running


def test_concurrency_is_what_fits(shared: Serving, speak_for: As) -> None:
    rows = speak_for("ops").get("/v1/kv/info").json()["concurrency"]
    assert rows
    cache = shared.engine.cache
    for row in rows:
        assert row["requests"] == cache.pool.num_blocks // cache.layout.num_pages(row["tokens"])
    assert rows[-1]["tokens"] == shared.engine.max_request_tokens


def test_others_see_what_is_theirs_alone(shared: Serving, speak_for: As) -> None:
    speak_for("ops").post("/v1/kv/quota", json={"tenant": "team-a", "capacity": "25%", "weight": 2})
    body = {"prompt": "the moon changes its shape", "max_tokens": 4}
    for name in ("team-a", "team-b"):
        assert speak_for(name).post("/v1/completions", json=body).status_code == 200
    told = {name: speak_for(name).get("/v1/kv/info").json() for name in ("team-a", "team-b", "ops")}
    usage = told["team-a"]["tenant"]["usage"]
    assert usage["blocks"]["device"] == told["team-b"]["tenant"]["usage"]["blocks"]["device"] > 0
    assert usage["quota"]["device"] == 16
    assert told["team-b"]["tenant"]["usage"]["quota"] is None
    assert set(told["team-a"]) == {"model", "page_size", "bytes_per_token", "max_model_len", "tenant"}
    assert "team-b" not in str(told["team-a"])
    assert set(told["ops"]["retention"]["tenants"]) >= {"team-a", "team-b"}  # names, and no salt
    assert not [name for name in told["ops"]["retention"]["tenants"] if len(name) > 10]
