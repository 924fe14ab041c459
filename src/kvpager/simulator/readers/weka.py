"""WEKA's recorded sessions of a coding agent (kv-cache-tester): one session a line, ids local to it, 64-token pages.

    {"id": "trace_0001", "block_size": 64, "requests": [
        {"t": 0.0, "in": 130, "out": 9, "hash_ids": [1, 2], "stop": "tool_use", ..},
        {"t": 7.5, "type": "subagent", "requests": [{"t": 0.0, ..}, ..]}, ..]}

``t`` is in seconds from the start of the session; in a sub-agent's requests, from the start of the sub-agent. The file
does not tell when sessions started, so ``WekaOptions`` spreads them. Ids form a chain and count full pages only.
"""

import random
from dataclasses import dataclass

import numpy as np

from kvpager.errors import ConfigError
from kvpager.eviction.policy import StopReason
from kvpager.simulator.readers.chains import Requests, build_trace
from kvpager.simulator.readers.hash_ids import ids_of
from kvpager.simulator.readers.lines import Lines, Record, objects, record_of, seconds, whole
from kvpager.simulator.trace import Trace

PAGE_TOKENS = 64
_ALIKE = 30  # requests: sessions that begin with the same that many input lengths are recordings of one session
_STOPS = {"tool_use": StopReason.TOOL_CALL, "end_turn": StopReason.END_OF_TURN}


@dataclass(frozen=True, slots=True)
class WekaOptions:
    """``spread`` (seconds): sessions start uniformly within it, drawn with ``seed`` in the order of the file.
    ``max_idle`` (seconds): longer pauses within a session are cut to it. ``keep_duplicates``: sessions that begin like
    an earlier one are kept; as ids are local they share nothing, but count twice.
    """

    spread: float = 24 * 3600.0
    max_idle: float = 4 * 3600.0
    seed: int = 1
    keep_duplicates: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.spread < 1e12 and 0 <= self.max_idle < 1e12):
            raise ConfigError("spread and max_idle must be seconds, at least 0")


def read_weka(lines: Lines, options: WekaOptions | None = None, page_tokens: int | None = None) -> Trace:
    options = options or WekaOptions()
    draw = random.Random(options.seed)
    requests = Requests()
    begins: set[tuple[int, ...]] = set()
    num_ids = 0

    def take(line: bytes) -> None:
        nonlocal num_ids
        session = [_request(record, start) for record, start in _flat(record_of(line))]
        begin = tuple(request.input_tokens for request in session[:_ALIKE])
        if not session or (begin in begins and not options.keep_duplicates):
            return
        begins.add(begin)
        session.sort(key=lambda request: request.time)  # stable: those of one moment in the order of the file
        offset, num_ids = num_ids, num_ids + 1 + max(int(request.ids.max(initial=0)) for request in session)
        time, before = draw.uniform(0, options.spread), session[0].time
        for request in session:
            time += min(request.time - before, options.max_idle)
            before = request.time
            requests.add(time, request.ids + offset, request.input_tokens, request.output_tokens, request.stop)

    lines.each(take)
    return build_trace(lines.path.name, requests, PAGE_TOKENS, joined=page_tokens, skipped_lines=lines.skipped)


@dataclass(frozen=True, slots=True)
class _Request:
    time: float
    ids: np.ndarray
    input_tokens: int
    output_tokens: int
    stop: StopReason


def _flat(session: Record) -> list[tuple[Record, float]]:
    """All requests of a session, and the moment from which each one's time counts."""
    if session["block_size"] != PAGE_TOKENS:
        raise ValueError(f"'block_size' must be {PAGE_TOKENS}")
    found: list[tuple[Record, float]] = []
    for record in objects(session, "requests"):
        if "requests" in record:
            start = seconds(record, "t")
            found += [(request, start) for request in objects(record, "requests")]
        else:
            found.append((record, 0.0))
    return found


def _request(record: Record, start: float) -> _Request:
    ids = ids_of(record)
    input_tokens = whole(record, "in")
    if len(ids) != input_tokens // PAGE_TOKENS:
        raise ValueError(f"{len(ids)} ids do not fit {input_tokens} tokens in full pages of {PAGE_TOKENS}")
    if len(ids) and (ids.min() < 0 or ids.max() >= 1 << 30):
        raise ValueError("'hash_ids' must be from 0 to 2^30")
    stop = _STOPS.get(str(record.get("stop")), StopReason.UNKNOWN)
    return _Request(start + seconds(record, "t"), ids.astype(np.int32), input_tokens, whole(record, "out"), stop)
