"""Guides of answers that clients want in some form: compiled by llguidance, off the event loop, and kept for a while.

    response_format -> grammar (grammars.py) -> [known?] -> check (grammar_check.py) -> compile -> fork -> Guide

One thread compiles, one grammar after the other, so however many are sent, they take one core. Those that were refused
are remembered like the others.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from kvpager.engine.guide import Guide
from kvpager.errors import ConfigError, MissingExtra, RequestError
from kvpager.server.errors import ApiError

try:
    import llguidance.hf
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer
except ImportError as error:
    raise MissingExtra("llguidance", "server", "structured output") from error

from kvpager.server.grammar_check import GrammarCheck
from kvpager.server.grammars import Form, form_of

MAX_GRAMMARS = 128  # that are kept
MAX_GRAMMAR_BYTES = 256 << 20  # of memory that they take, estimated
MAX_WAITING = 64  # requests that wait for theirs
_BYTES_PER_BYTE = 200  # of a compiled grammar for each of its source, and
_FEWEST_BYTES = 64 << 10  # at least, measured
_LIMITS = {"verbose_errors": False, "max_lexer_states": 50_000}  # errors must not quote the answer; 2 kB a state
_MAX_MESSAGE = 300  # characters


class GrammarGuide:
    """A ``Guide`` by a compiled grammar. Its thread is that of whoever uses it."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def allowed(self) -> npt.NDArray[np.bool_]:
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(mask, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def fork(self) -> "GrammarGuide":
        return GrammarGuide(self._matcher.deep_copy())

    @property
    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_stopped() and self._matcher.is_accepting())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ValueError(_told(self._matcher.get_error()))


class Guides:
    """Of one model. ``tokenizer``: of Hugging Face, and a fast one; it is read when the first guide is wanted."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ours: LLTokenizer | None = None
        self._limits = LLParserLimits(**_LIMITS)  # type: ignore[arg-type]
        self._check = GrammarCheck(_LIMITS)
        self._kept: OrderedDict[bytes, LLMatcher | str] = OrderedDict()  # or why it was refused
        self._sizes: dict[bytes, int] = {}
        self._thread = ThreadPoolExecutor(1, "kvpager-grammars")
        self._waiting = 0

    async def guide(
        self, response_format: Mapping[str, object] | None, structured_outputs: Mapping[str, object] | None = None
    ) -> Guide | None:
        """The guide of a request; None if it wants no form. Raises RequestError that names the field and its fault."""
        form = form_of(response_format, structured_outputs)
        if form is None:
            return None
        if self._waiting >= MAX_WAITING:
            raise ApiError(503, "too many grammars are being compiled; retry later", retry_after=5)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._compiled, form)
        finally:
            self._waiting -= 1

    def make(
        self, response_format: Mapping[str, object] | None, structured_outputs: Mapping[str, object] | None = None
    ) -> Guide | None:
        """The same for callers that may wait."""
        form = form_of(response_format, structured_outputs)
        return None if form is None else self._thread.submit(self._compiled, form).result()

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def close(self) -> None:
        """Ends the thread and the process of the check."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._check.interrupt()
        self._thread.shutdown()
        self._check.close()

    # -- the thread's own -----------------------------------------------------------------------------------------

    def _compiled(self, form: Form) -> Guide:
        grammar = form.grammar
        key = sha256(grammar.encode()).digest()
        found = self._kept.get(key)
        if found is None:
            found = self._compile(grammar)
            self._keep(key, found, _FEWEST_BYTES + _BYTES_PER_BYTE * len(grammar))
        else:
            self._kept.move_to_end(key)
        if isinstance(found, str):
            raise RequestError(f"{form.field} can't be enforced: {found}")
        return GrammarGuide(found.deep_copy())

    def _compile(self, grammar: str) -> LLMatcher | str:
        fault = self._check.fault_of(grammar)
        if fault:
            return _told(fault)
        matcher = LLMatcher(self._tokens(), grammar, log_level=0, limits=self._limits)
        return _told(matcher.get_error()) if matcher.is_error() else matcher

    def _keep(self, key: bytes, found: LLMatcher | str, size: int) -> None:
        self._kept[key], self._sizes[key] = found, size
        while len(self._kept) > MAX_GRAMMARS or sum(self._sizes.values()) > MAX_GRAMMAR_BYTES:
            oldest, _ = self._kept.popitem(last=False)
            del self._sizes[oldest]

    def _tokens(self) -> LLTokenizer:
        if self._ours is None:
            try:
                self._ours = llguidance.hf.from_tokenizer(self._tokenizer)
            except Exception as error:
                raise ConfigError(f"structured output needs a fast tokenizer with an end token ({error})") from None
        return self._ours


def make_guide(response_format: Mapping[str, object] | None, tokenizer: Any) -> Guide | None:
    """One guide, where nobody keeps a ``Guides``. Waits."""
    guides = Guides(tokenizer)
    try:
        return guides.make(response_format)
    finally:
        guides.close()


def _told(error: str) -> str:
    """The library's error for a client: what is wrong, without the grammar around it."""
    lines = error.replace("<non-verbose/>", "").strip().splitlines() or ["it is wrong"]
    said = [lines[0].rstrip(": "), *(line.strip() for line in lines[1:] if line.startswith("error:"))]
    return "; ".join(said)[:_MAX_MESSAGE]
