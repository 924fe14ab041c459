"""kvpager's own trace format, and the writer that a running engine calls. No text and no token ids get into it.

Lines of JSON. The first one says what follows:

    {"format": "kvpager-trace", "version": 1, "page_tokens": 16}
    {"t": 3.125, "pages": "5f0c9a3be1d2447012f6ce5a90b83d41", "in": 37, "out": 120, "matched": 1, "stop": "tool_call"}

    t        seconds since the recording began, when the request came. Lines are in the order in which requests ended,
             so t may fall from one to the next; readers sort
    pages    one hash of 8 bytes per page of the prompt, as 16 hexadecimal digits each, root first. The hash names the
             whole prefix up to there. The last page may be partial; it may also be left out
    in, out  tokens of the prompt, and generated
    matched  how many of the pages were found in the cache; null where nobody counted, as in converted traces
    stop     "unknown", "tool_call" or "end_of_turn"

The hashes are of content keys, keyed with a salt that is made for each recording and written nowhere: who has the file
can't test whether a prompt is in it. So two recordings share no hashes, unless their writers are given one salt.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from kvpager.errors import ConfigError
from kvpager.eviction.policy import StopReason

FORMAT = "kvpager-trace"
VERSION = 1
HASH_BYTES = 8
STOP_NAMES = {reason.name.lower(): reason for reason in StopReason}


class Recorder:
    """Writes one line a request into a new file that only its owner may read, at once and whole.

    A full or broken disk ends the recording, never the engine: ``failure`` then says why, and ``record`` does nothing.
    """

    def __init__(self, path: str | Path, *, page_tokens: int, salt: bytes | None = None) -> None:
        """``salt``: up to 64 bytes; None makes a secret one. Raises ConfigError for a ``path`` that exists."""
        if page_tokens < 1:
            raise ConfigError(f"page_tokens must be at least 1, not {page_tokens}")
        if salt is not None and len(salt) > hashlib.blake2b.MAX_KEY_SIZE:
            raise ConfigError(f"a salt has at most {hashlib.blake2b.MAX_KEY_SIZE} bytes, not {len(salt)}")
        self.page_tokens = page_tokens
        self.num_requests = 0
        self.failure = ""
        self._salt = secrets.token_bytes(32) if salt is None else salt
        self._size = 0
        try:
            self._file = cast(BinaryIO, open(path, "xb", buffering=0, opener=_for_the_owner))  # noqa: SIM115
        except FileExistsError:
            raise ConfigError(f"recording {path} exists already and is never overwritten; name another file") from None
        except OSError as error:
            raise ConfigError(f"recording {path} can't be made: {error.strerror or error}") from error
        self._write({"format": FORMAT, "version": VERSION, "page_tokens": page_tokens})
        if self.failure:
            self.close()
            raise ConfigError(f"recording {path} can't be written: {self.failure}")

    def record(
        self,
        time: float,
        keys: Sequence[bytes],
        *,
        input_tokens: int,
        output_tokens: int,
        matched: int | None,
        stop: StopReason = StopReason.UNKNOWN,
    ) -> None:
        """One request that has ended. ``time``: when it came, in seconds since the recording began. ``keys``: the
        content keys of the prompt's pages, root first. ``matched``: how many of them were found, None if not counted.
        """
        full = input_tokens // self.page_tokens
        if not full <= len(keys) <= -(-input_tokens // self.page_tokens):
            raise ConfigError(f"{len(keys)} keys do not fit {input_tokens} tokens in pages of {self.page_tokens}")
        if not 0 <= (matched or 0) <= len(keys) or output_tokens < 0:
            raise ConfigError("matched must be at most the number of keys, and no count negative")
        self._write(
            {
                "t": round(time, 6),
                "pages": "".join(self._hash(key) for key in keys),
                "in": input_tokens,
                "out": output_tokens,
                "matched": matched,
                "stop": stop.name.lower(),
            }
        )
        self.num_requests += not self.failure

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            self._fail(error)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hash(self, key: bytes) -> str:
        return hashlib.blake2b(key, digest_size=HASH_BYTES, key=self._salt).hexdigest()

    def _write(self, line: dict[str, object]) -> None:
        if self.failure:
            return
        rest = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        whole = self._size + len(rest)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            self._size = whole
        except OSError as error:
            self._fail(error)
            with suppress(OSError):
                self._file.truncate(self._size)  # no half line stays behind

    def _fail(self, error: OSError) -> None:
        self.failure = self.failure or f"the recording ended after {self.num_requests} requests: {error.strerror}"


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
