"""Azure's LLM inference traces: when requests came and how long they were, nothing of what they read.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:17:03.9799600,4808,10

Nothing can hit in such a trace; it lends its arrivals to another one (``Trace.with_arrivals``).
"""

from datetime import UTC, datetime

import numpy as np

from kvpager.simulator.readers.chains import Requests, build_trace
from kvpager.simulator.readers.lines import Lines
from kvpager.simulator.trace import Trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
_NO_IDS = np.empty(0, np.int64)


def read_azure(lines: Lines) -> Trace:
    requests = Requests()

    def take(line: bytes) -> None:
        text = line.decode("utf-8", "strict").strip()
        if text == HEADER:
            return
        fields = text.split(",")
        if len(fields) != 3:
            raise ValueError("not three fields")
        requests.add(_seconds(fields[0]), _NO_IDS, _tokens(fields[1]), _tokens(fields[2]))

    lines.each(take)
    first = min(requests.times, default=0.0)
    requests.times = [time - first for time in requests.times]
    return build_trace(lines.path.name, requests, 1, skipped_lines=lines.skipped)


def _seconds(text: str) -> float:
    """Since 1970; the file has seven digits behind the point and no zone, sometimes an offset."""
    moment, point, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    when = datetime.fromisoformat(moment + rest[len(digits) :])
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return when.timestamp() + (float(f"0.{digits}") if point and digits else 0.0)


def _tokens(text: str) -> int:
    count = int(text)
    if not 0 <= count < 2**31:
        raise ValueError(f"{count} tokens")
    return count
