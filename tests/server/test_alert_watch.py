"""Alerts of a running server: evaluated without anybody watching, shown in the frames of the page, ended with it."""

import asyncio
import logging
import time

import httpx
import pytest

from kvpager.metrics.alert_rules import Rule, Severity
from kvpager.metrics.alerts import Alerts
from kvpager.server.alert_watch import watching
from tests.metrics.snapshots import snapshot
from tests.server.serving import serving

ALWAYS = Rule(
    "KVPagerTest", Severity.WARNING, "A test", "Nothing.", "vector(1)", lambda window: {"disk": 1.0}, above=0.5,
    shown="{:.0f}", hold_seconds=0,
)  # fmt: skip


def test_what_fires_is_shown_in_the_frames(model: str) -> None:
    with serving(model) as server:
        assert httpx.get(server.url + "/v1/kv/frame", timeout=60).json()["alerts"] == []
        server.service.alerts = Alerts(rules=(ALWAYS,))
        stop_at = time.monotonic() + 60
        while not (alerts := httpx.get(server.url + "/v1/kv/frame", timeout=60).json()["alerts"]):
            assert time.monotonic() < stop_at
            time.sleep(0.2)
    (alert,) = alerts
    assert alert.pop("since") == pytest.approx(time.time(), abs=120)
    assert alert == {"name": "KVPagerTest", "severity": "warning", "summary": "A test (disk)", "value": "1"}


class _Thread:
    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)

    async def snapshot(self) -> object:
        self.asked.release()
        return snapshot()


class _Service:
    def __init__(self, *rules: Rule) -> None:
        self.thread, self.alerts = _Thread(), Alerts(rules=rules)


def test_the_engine_is_looked_at_until_the_server_ends() -> None:
    async def run() -> None:
        service = _Service()
        async with watching(service, seconds=0.001):  # type: ignore[arg-type]
            for _ in range(3):
                await service.thread.asked.acquire()
        assert [task for task in asyncio.all_tasks() if task.get_name() == "alerts"] == []

    asyncio.run(run())


def test_a_fault_of_the_evaluation_is_told_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(window: object) -> dict[str, float]:
        raise ZeroDivisionError

    async def run() -> None:
        rule = Rule("KVPagerBroken", Severity.WARNING, "x", "x.", "x", broken, above=0)
        async with watching(_Service(rule), seconds=0.001):  # type: ignore[arg-type]
            while not caplog.records:
                await asyncio.sleep(0)

    caplog.set_level(logging.ERROR)
    asyncio.run(run())
    assert "alerts can't be evaluated" in caplog.text
