"""JSON lines with a list ``hash_ids`` a request: two families that differ in units and in what an id says.

Mooncake (FAST'25): pages of 512 tokens, ``timestamp`` in milliseconds, ids name the whole prefix.

    {"timestamp": 3000, "input_length": 1100, "output_length": 52, "hash_ids": [0, 7, 8]}

Bailian (Qwen usage traces, ATC'25): pages of 16 tokens, ``timestamp`` in seconds, ids name the content of one page, so
they are chained here; and the chat a request belongs to, which is not used.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 33, "output_length": 132,
     "type": "text", "turn": 2, "hash_ids": [1089, 1090, 13148]}

In both the last id may be of a page that is not full. Timestamps come in steps, so many requests share one: they stay
in the order of the file. The output is not among the ids; it appears in the next request of the same chat.
"""

from dataclasses import dataclass

import numpy as np

from kvpager.simulator.readers.chains import Requests, build_trace
from kvpager.simulator.readers.lines import Lines, Record, record_of, seconds, whole
from kvpager.simulator.trace import Trace


@dataclass(frozen=True, slots=True)
class HashIdFormat:
    page_tokens: int
    time_unit: float  # seconds


MOONCAKE = HashIdFormat(page_tokens=512, time_unit=1e-3)
BAILIAN = HashIdFormat(page_tokens=16, time_unit=1.0)


def read_hash_ids(layout: HashIdFormat, lines: Lines, page_tokens: int | None = None) -> Trace:
    requests = Requests()

    def take(line: bytes) -> None:
        record = record_of(line)
        input_tokens = whole(record, "input_length")
        ids = ids_of(record)
        if len(ids) not in (input_tokens // layout.page_tokens, -(-input_tokens // layout.page_tokens)):
            raise ValueError(f"{len(ids)} ids do not fit {input_tokens} tokens in pages of {layout.page_tokens}")
        time = seconds(record, "timestamp", layout.time_unit)
        requests.add(time, ids, input_tokens, whole(record, "output_length"))

    lines.each(take)
    return build_trace(lines.path.name, requests, layout.page_tokens, joined=page_tokens, skipped_lines=lines.skipped)


def ids_of(record: Record) -> np.ndarray:
    """int64: the list ``hash_ids``. Raises ValueError or KeyError."""
    values = record["hash_ids"]
    if not isinstance(values, list):
        raise ValueError("'hash_ids' must be a list")
    ids = np.array(values)
    if ids.ndim == 1 and (not len(ids) or ids.dtype == np.int64):
        return ids.astype(np.int64, copy=False)
    if not all(type(value) is int and -(1 << 63) <= value < 1 << 64 for value in values):
        raise ValueError("'hash_ids' must be whole numbers of 64 bits")
    return np.array([value % (1 << 64) for value in values], np.uint64).view(np.int64)  # hashes, not all of them small
