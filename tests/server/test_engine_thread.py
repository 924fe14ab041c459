"""The engine beside an event loop, seen through a real server."""

import httpx

from tests.server.serving import Serving


def test_a_completion_is_that_of_the_engine(client: httpx.Client, server: Serving) -> None:
    body = {"model": server.service.model_name, "prompt": "the moon", "max_tokens": 8, "temperature": 0}
    first = client.post("/v1/completions", json=body).json()
    again = client.post("/v1/completions", json=body).json()
    assert first["choices"][0]["text"] == again["choices"][0]["text"] != ""


def test_health(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    assert client.get("/ready").json()["status"] == "ready"
