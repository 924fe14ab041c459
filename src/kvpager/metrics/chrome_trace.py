"""Frames as a Chrome trace: a file that Perfetto (ui.perfetto.dev) and chrome://tracing open.

    process 1  kvpager memory   a thread each for faults, migrations, evictions and preemptions, and counters of blocks
    process 2  requests         a thread each: from when it came to when it was last seen, running and waiting

Times are microseconds since the first frame. What is known comes from frames, so nothing is sharper than they are: a
fault lies somewhere in the span of its slice, whose length is the time between two frames.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_MEMORY, _REQUESTS = 1, 2
_TRACKS = {"faults": 1, "migrations": 2, "evictions": 3, "preemptions": 4}
_TRACK_OF_KIND = {
    "demand_fault": "faults",
    "minor_fault": "faults",
    "major_fault": "faults",
    "copy_on_write": "faults",
    "demote": "migrations",
    "promote": "migrations",
    "eviction": "evictions",
    "preemption": "preemptions",
}
_BLOCKS = ("used", "cached", "moving", "free")
_Event = dict[str, Any]


@dataclass(slots=True)
class _Seen:
    """One branch in the frames so far: when its request came, and the state it is in ``since``, until ``last``."""

    label: str
    came: float
    state: str
    since: float
    last: float
    known: dict[str, Any] = field(default_factory=dict)


def chrome_trace(figures: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """``figures``: of frames, the oldest first. Without frames the trace is empty, and still a trace."""
    events: list[_Event] = []
    seen: dict[int, _Seen] = {}
    zero: float | None = None
    model = ""
    for frame in figures:
        zero = frame["time"] - _longest_span(frame) if zero is None else zero
        model = frame["model"]
        events += [_slice_of(deed, zero) for deed in frame["activity"] if deed["kind"] in _TRACK_OF_KIND]
        events.append(_counter("blocks", frame["time"] - zero, {name: frame["pool"][name] for name in _BLOCKS}))
        waiting = {"running": frame["running"], "waiting": frame["waiting"]}
        events.append(_counter("requests", frame["time"] - zero, waiting))
        for owner in frame["owners"]:
            events += _advance(seen, owner, frame["time"] - zero)
    events += [event for number, each in seen.items() for event in _ended(number, each)]
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))  # what lies inside another comes after it
    return {
        "traceEvents": [*_names(seen), *events],
        "displayTimeUnit": "ms",
        "otherData": {"program": "kvpager", "model": model},
    }


def _longest_span(frame: dict[str, Any]) -> float:
    """How far the first frame reaches back: nothing in a trace may lie before zero."""
    spans = [deed["span"] for deed in frame["activity"]] + [owner["age"] for owner in frame["owners"]]
    return max(spans, default=0.0)


def _advance(seen: dict[int, _Seen], owner: dict[str, Any], now: float) -> Iterable[_Event]:
    """A branch is there at ``now``. Returns the slice of the state that it has left, if it has."""
    number, state = owner["owner"], owner["state"]
    known = {name: owner[name] for name in ("prompt_tokens", "generated", "prefix_tokens", "pages", "preemptions")}
    was = seen.get(number)
    label = f"{owner['request']} [{owner['choice']}]"
    if was is None or was.label != label:
        came = max(0.0, now - owner["age"])
        seen[number] = _Seen(label, came, state, came, now, known)
        return () if was is None else _ended(number, was)
    left = [] if was.state == state else [_state_slice(number, was, now)]
    seen[number] = _Seen(label, was.came, state, now if left else was.since, now, known)
    return left


def _ended(number: int, each: _Seen) -> list[_Event]:
    whole = _slice(each.label, "request", each.came, each.last, _REQUESTS, number, each.known)
    return [whole, _state_slice(number, each, each.last)]


def _state_slice(number: int, each: _Seen, until: float) -> _Event:
    return _slice(each.state, "state", each.since, until, _REQUESTS, number, {})


def _slice_of(deed: dict[str, Any], zero: float) -> _Event:
    track, end = _TRACK_OF_KIND[deed["kind"]], deed["time"] - zero
    known = {"pages": deed["pages"], "tier": deed["tier"], "seconds": deed["seconds"]}
    begin = max(0.0, end - deed["span"])
    return _slice(deed["kind"].replace("_", " "), track, begin, end, _MEMORY, _TRACKS[track], known)


def _slice(name: str, category: str, begin: float, end: float, pid: int, tid: int, args: dict[str, Any]) -> _Event:
    start = _us(begin)
    event = {"name": name, "cat": category, "ph": "X", "ts": start, "dur": max(0, _us(end) - start)}
    return {**event, "pid": pid, "tid": tid, "args": args}


def _counter(name: str, now: float, values: dict[str, int]) -> _Event:
    return {"name": name, "ph": "C", "ts": _us(now), "pid": _MEMORY, "args": values}


def _names(seen: dict[int, _Seen]) -> Iterable[_Event]:
    """Metadata: what processes and threads are called."""
    for pid, name in ((_MEMORY, "kvpager memory"), (_REQUESTS, "requests")):
        yield {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
    for name, tid in _TRACKS.items():
        yield {"name": "thread_name", "ph": "M", "pid": _MEMORY, "tid": tid, "args": {"name": name}}
    for number, each in seen.items():
        yield {"name": "thread_name", "ph": "M", "pid": _REQUESTS, "tid": number, "args": {"name": each.label}}


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
