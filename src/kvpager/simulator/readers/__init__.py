"""Reads trace files. ``read_trace`` tells the format from the content; each format has a file of its own here."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from kvpager.errors import ConfigError
from kvpager.simulator.readers import arrays, azure
from kvpager.simulator.readers.arrays import write_arrays
from kvpager.simulator.readers.azure import read_azure
from kvpager.simulator.readers.hash_ids import BAILIAN, MOONCAKE, read_hash_ids
from kvpager.simulator.readers.kv_events import is_batch, read_kv_events
from kvpager.simulator.readers.lines import Lines, TraceError
from kvpager.simulator.readers.packed import open_bytes
from kvpager.simulator.readers.recorded import read_recorded
from kvpager.simulator.readers.weka import WekaOptions, read_weka
from kvpager.simulator.recording import FORMAT
from kvpager.simulator.trace import Trace

__all__ = ["FORMATS", "TraceError", "WekaOptions", "format_of", "read_trace", "write_arrays"]

FORMATS = ("mooncake", "bailian", "weka", "azure", "kv-events", "recorded", "arrays")

_LOOKED_AT = 20  # lines: so many damaged ones at the start are survived
_WEKA_PAGE_TOKENS = 512  # unless told otherwise: its own 64 make a hundred million references


def read_trace(
    path: str | Path,
    *,
    format: str | None = None,
    skip_bad: bool = False,
    page_tokens: int | None = None,
    weka: WekaOptions | None = None,
) -> Trace:
    """The trace in a file, packed with Zstandard or not.

    ``format``: one of ``FORMATS``; None tells it from the content. ``skip_bad``: leave damaged lines out and count them
    (``Trace.skipped_lines``). ``page_tokens``: a multiple of the file's own page size; tokens behind the last full page
    are then left out. None keeps the file's pages, except WEKA's, which become 512 tokens. ``weka``: for that format
    only.

    Raises TraceError naming the file and the line, ConfigError for an option that does not fit, MissingExtra.
    """
    path = Path(path)
    if format is None:
        format = format_of(path)
    elif format not in FORMATS:
        raise ConfigError(f"unknown trace format {format!r}; there are {', '.join(FORMATS)}")
    if weka is not None and format != "weka":
        raise ConfigError(f"options for WEKA traces do not fit {path}, which is of format {format}")
    if format in ("arrays", "azure") and page_tokens is not None:
        raise ConfigError(f"the pages of a trace of format {format} can't be joined; leave out page_tokens")
    if format == "arrays":
        return arrays.read_arrays(path)
    lines = Lines(path, skip_bad=skip_bad)
    if format == "azure":
        return read_azure(lines)
    if format == "weka":
        return read_weka(lines, weka, _WEKA_PAGE_TOKENS if page_tokens is None else page_tokens)
    return _READERS[format](lines, page_tokens)


_READERS: dict[str, Callable[[Lines, int | None], Trace]] = {
    "mooncake": partial(read_hash_ids, MOONCAKE),
    "bailian": partial(read_hash_ids, BAILIAN),
    "kv-events": read_kv_events,
    "recorded": read_recorded,
}


def format_of(path: Path) -> str:
    """One of ``FORMATS``. Raises TraceError for a file that is none of them."""
    for line in _first_lines(path):
        if line.startswith(arrays.MAGIC):
            return "arrays"
        if line.decode("utf-8", "replace").strip() == azure.HEADER:
            return "azure"
        try:
            if found := _format_of_json(json.loads(line)):
                return found
        except (ValueError, RecursionError):
            continue
    raise TraceError(f"trace {path} is of no known format; name one of {', '.join(FORMATS)}")


def _format_of_json(record: Any) -> str | None:
    if is_batch(record):
        return "kv-events"
    if not isinstance(record, dict):
        return None
    if record.get("format") == FORMAT:
        return "recorded"
    if "requests" in record and "block_size" in record:
        return "weka"
    if {"hash_ids", "input_length", "timestamp"} <= record.keys():
        return "bailian" if "chat_id" in record else "mooncake"
    return None


def _first_lines(path: Path) -> Iterator[bytes]:
    try:
        with open_bytes(path) as file:
            yield from islice(file, _LOOKED_AT)
    except OSError as error:
        raise TraceError(f"trace {path} can't be read: {error.strerror or error}") from error
