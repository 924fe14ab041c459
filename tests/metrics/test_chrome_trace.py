"""The trace has the structure that Perfetto reads: events with ph, pid, tid, ts in microseconds, and named tracks."""

import json
from typing import Any

from kvpager.metrics.chrome_trace import chrome_trace

POOL = {"used": 3, "cached": 2, "moving": 0, "free": 5}


def owner(number: int = 1, state: str = "running", age: float = 1.0, **more: Any) -> dict[str, Any]:
    known = {"prompt_tokens": 9, "generated": 1, "prefix_tokens": 0, "pages": 3, "preemptions": 0}
    return {"owner": number, "request": f"cmpl-{number}", "choice": 0, "state": state, "age": age, **known, **more}


def deed(kind: str, time: float, pages: int = 1) -> dict[str, Any]:
    return {"kind": kind, "time": time, "span": 0.25, "pages": pages, "tier": "host", "seconds": 0.01}


def figures(time: float, *owners: dict[str, Any], activity: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    counts = {"running": len(owners), "waiting": 0}
    return {"time": time, "model": "tiny", "pool": POOL, "owners": owners, "activity": activity, **counts}


def slices(trace: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == category]


TRACE = chrome_trace(
    [
        figures(100.0, owner(age=2.0, state="waiting"), activity=(deed("demand_fault", 100.0, 4),)),
        figures(100.5, owner(age=2.5), owner(2, age=0.1), activity=(deed("demote", 100.5), deed("preemption", 100.5))),
        figures(101.0, owner(age=3.0), activity=(deed("eviction", 101.0), deed("something_new", 101.0))),
    ]
)


def test_every_event_has_what_perfetto_asks_for() -> None:
    assert json.loads(json.dumps(TRACE)) == TRACE
    assert TRACE["displayTimeUnit"] == "ms"
    for event in TRACE["traceEvents"]:
        assert event["ph"] in "XCM"
        assert isinstance(event["pid"], int)
        if event["ph"] != "M":
            assert isinstance(event["ts"], int)
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert isinstance(event["dur"], int)
            assert event["dur"] >= 0
            assert isinstance(event["tid"], int)


def test_every_track_has_a_name() -> None:
    names = {
        (event["pid"], event.get("tid")): event["args"]["name"] for event in TRACE["traceEvents"] if event["ph"] == "M"
    }
    used = {(event["pid"], event["tid"]) for event in TRACE["traceEvents"] if event["ph"] == "X"}
    assert used <= set(names)
    assert {names[1, None], names[2, None]} == {"kvpager memory", "requests"}
    assert {"cmpl-1 [0]", "cmpl-2 [0]", "faults", "migrations", "evictions", "preemptions"} <= set(names.values())


def test_a_request_lasts_from_when_it_came_to_when_it_was_last_seen() -> None:
    first, second = slices(TRACE, "request")
    assert (first["name"], first["ts"], first["dur"]) == ("cmpl-1 [0]", 0, 3_000_000)
    assert (second["name"], second["ts"], second["dur"]) == ("cmpl-2 [0]", 2_400_000, 100_000)
    assert [(each["name"], each["ts"], each["dur"]) for each in slices(TRACE, "state") if each["tid"] == 1] == [
        ("waiting", 0, 2_500_000),
        ("running", 2_500_000, 500_000),
    ]


def test_slices_of_one_track_lie_inside_or_behind_each_other() -> None:
    for tid in (1, 2):
        open_until: list[int] = []
        for event in [each for each in TRACE["traceEvents"] if each["ph"] == "X" and each["pid"] == 2]:
            if event["tid"] != tid:
                continue
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            assert not open_until or event["ts"] + event["dur"] <= open_until[-1]
            open_until.append(event["ts"] + event["dur"])


def test_deeds_lie_on_their_tracks() -> None:
    (fault,) = slices(TRACE, "faults")
    assert (fault["name"], fault["ts"], fault["dur"], fault["args"]["pages"]) == ("demand fault", 1_750_000, 250_000, 4)
    assert [each["name"] for each in slices(TRACE, "migrations")] == ["demote"]
    assert [each["name"] for each in slices(TRACE, "preemptions")] == ["preemption"]
    assert [each["name"] for each in slices(TRACE, "evictions")] == ["eviction"]


def test_a_number_that_another_request_has_later_ends_the_first() -> None:
    trace = chrome_trace([figures(1.0, owner(age=0.0)), figures(2.0, owner(age=0.2, request="cmpl-new"))])
    assert [(each["name"], each["dur"]) for each in slices(trace, "request")] == [
        ("cmpl-1 [0]", 0),
        ("cmpl-new [0]", 200_000),
    ]


def test_no_frames_are_an_empty_trace() -> None:
    trace = chrome_trace([])
    assert [event["ph"] for event in trace["traceEvents"]] == ["M"] * 6
