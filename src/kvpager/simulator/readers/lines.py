"""The lines of a trace file, packed or not, and what happens to damaged ones. Knows no format."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvpager.errors import ConfigError
from kvpager.simulator.readers.packed import open_bytes

_LONGEST_LINE = 1 << 30  # bytes

Record = dict[str, Any]


class TraceError(ConfigError):
    """A trace file can't be read: it is damaged, or of a format that is not known. The message names file and line."""


class Lines:
    """Runs a function over the lines of a file; what it can't take is an error, or left out and counted.

    ``skip_bad``: leave damaged lines out. ``skipped``: how many that were so far.
    """

    def __init__(self, path: Path, *, skip_bad: bool = False) -> None:
        self.path = path
        self.skipped = 0
        self._skip_bad = skip_bad

    def each(self, take: Callable[[bytes], None]) -> None:
        """``take(line)`` for each line that is not blank. If it raises ValueError or the like, the line is damaged."""
        for number, line in self._numbered():
            try:
                take(line)
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                self.damaged(f"line {number}", error)

    def damaged(self, where: str, error: Exception) -> None:
        """Counts something damaged, or raises TraceError with its place."""
        if not self._skip_bad:
            what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise TraceError(f"trace {self.path}, {where} is damaged: {what}; --skip-bad leaves it out") from error
        self.skipped += 1

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        try:
            with open_bytes(self.path) as file:
                while line := file.readline(_LONGEST_LINE):
                    number += 1
                    if line.strip():
                        yield number, line
        except OSError as error:
            if not number:  # there is nothing to go on with
                raise TraceError(f"trace {self.path} can't be read: {error.strerror or error}") from error
            self.damaged(f"what follows line {number}", error)


def json_of(line: bytes) -> Any:
    """What a line of JSON says. Raises ValueError."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at byte {error.pos})") from None
    except UnicodeDecodeError:
        raise ValueError("not JSON (not even text)") from None


def record_of(line: bytes) -> Record:
    """The JSON object of a line. Raises ValueError."""
    record = json_of(line)
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def objects(record: Record, key: str) -> list[Record]:
    """A list of JSON objects in a record. Raises ValueError or KeyError."""
    values = record[key]
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ValueError(f"{key!r} must be a list of objects")
    return values


def whole(record: Record, key: str, least: int = 0, most: int = 2**31 - 1) -> int:
    """A whole number of a record. Raises ValueError or KeyError."""
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{key!r} must be a whole number from {least} to {most}")
    return value


def seconds(record: Record, key: str, unit: float = 1.0) -> float:
    """A moment of a record in seconds, where the file's are ``unit`` seconds long. Raises ValueError or KeyError."""
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e15:  # not for NaN either
        raise ValueError(f"{key!r} must be a number")
    return value * unit
