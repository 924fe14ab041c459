"""kvpager's own recordings, as simulator/recording.py describes and writes them."""

import numpy as np

from kvpager.simulator.readers.chains import Requests, build_trace
from kvpager.simulator.readers.lines import Lines, Record, record_of, seconds, whole
from kvpager.simulator.recording import FORMAT, HASH_BYTES, STOP_NAMES, VERSION
from kvpager.simulator.trace import Trace

_DIGITS = 2 * HASH_BYTES


def read_recorded(lines: Lines, page_tokens: int | None = None) -> Trace:
    requests = Requests()
    own = 0  # tokens a page, by the header

    def take(line: bytes) -> None:
        nonlocal own
        record = record_of(line)
        if "format" in record:
            own = _header(record, own)
            return
        if not own:
            raise ValueError("the header line is missing before it")
        input_tokens = whole(record, "in")
        ids = _hashes(record)
        if not input_tokens // own <= len(ids) <= -(-input_tokens // own):
            raise ValueError(f"{len(ids)} pages do not fit {input_tokens} tokens in pages of {own}")
        if record["matched"] is not None:
            whole(record, "matched", most=len(ids))
        stop = record["stop"]
        if stop not in STOP_NAMES:
            raise ValueError(f"'stop' must be one of {', '.join(STOP_NAMES)}")
        requests.add(seconds(record, "t"), ids, input_tokens, whole(record, "out"), STOP_NAMES[stop])

    lines.each(take)
    return build_trace(lines.path.name, requests, own or 1, joined=page_tokens, skipped_lines=lines.skipped)


def _header(record: Record, page_tokens: int) -> int:
    if record["format"] != FORMAT or record["version"] != VERSION:
        raise ValueError(f"only {FORMAT!r} of version {VERSION} is known")
    found = whole(record, "page_tokens", least=1)
    if page_tokens not in (0, found):
        raise ValueError(f"pages have {found} tokens from here on and {page_tokens} before")
    return found


def _hashes(record: Record) -> np.ndarray:
    """int64 [pages]: the hashes; which sign they get doesn't matter."""
    text = record["pages"]
    if not isinstance(text, str) or len(text) % _DIGITS:
        raise ValueError(f"'pages' must be a text of {_DIGITS} hexadecimal digits a page")
    return np.frombuffer(bytes.fromhex(text), np.int64)
