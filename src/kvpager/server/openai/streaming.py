"""Server-sent events of an answer: chunks as OpenAI's clients read them, ``[DONE]`` at the end.

    data: {chunk}    one for each choice that has something new, several tokens in one where they came together
    : ping           every 15 s, so that proxies keep the connection
    data: {"error"}  where it fails after it began; the stream then ends, without [DONE]

Chunks of one choice differ in a text only: the rest is written once.
"""

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from kvpager.engine.request import FinishReason, TokenEvent
from kvpager.errors import KVPagerError
from kvpager.server.answer import Answer
from kvpager.server.errors import ApiError, as_api_error
from kvpager.server.openai.generation import Batch, batches, cancel, check_ending
from kvpager.server.openai.off_loop import OffLoop

_log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
_PING_SECONDS = 15
_SEND_SECONDS = 60.0  # that a client may leave what it is sent unread
_AFTER_DRAIN = 5.0  # seconds, for the last words of what is ended by then
_MARK = "\ue000"  # where the text goes; private to programs, so no name has it

to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Stream(EventSourceResponse):
    """Cancels its answers when it ends, whatever the reason: a client that went away, or the last token."""

    def __init__(self, events: AsyncIterator[bytes], answers: Sequence[Answer], drain_seconds: float) -> None:
        super().__init__(
            events,
            ping=_PING_SECONDS,
            sep="\n",
            send_timeout=_SEND_SECONDS,
            shutdown_grace_period=drain_seconds + _AFTER_DRAIN,
        )
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            _log.info("a stream was given up: its client has not read for %.0f s", self.send_timeout or 0.0)
        finally:
            cancel(self._answers)


def event(value: object) -> bytes:
    return b"data: " + to_json(value).encode("utf-8", "replace") + b"\n\n"


async def events(
    answers: Sequence[Answer],
    speak: Callable[[Batch], Iterable[bytes]],
    *,
    first: bytes = b"",
    last: Callable[[], bytes] | None = None,
    off_loop: OffLoop | None = None,
) -> AsyncIterator[bytes]:
    """``speak``: chunks of what came, beside the event loop if it takes time; ``first`` and ``last``: chunks before and
    after all others."""
    try:
        if first:
            yield first
        async for came in batches(answers):
            said = _said(speak, came) if off_loop is None else await off_loop.run(partial(_said, speak, came))
            if said:
                yield said
            for batch in came:
                for each in batch.events:
                    if each.finish_reason is not None:
                        check_ending(answers[batch.prompt], each.finish_reason)
        yield (b"" if last is None else last()) + DONE
    except ApiError as error:
        yield event(error.body())
    except KVPagerError as error:
        yield event(as_api_error(error).body())


def _said(speak: Callable[[Batch], Iterable[bytes]], came: Sequence[Batch]) -> bytes:
    return b"".join([chunk for batch in came for chunk in speak(batch)])


def by_choice(came: Sequence[TokenEvent]) -> Iterable[tuple[int, Sequence[TokenEvent]]]:
    """What belongs to each choice's answer. An ending that is a failure does not: it is told of as an error, later."""
    if len(came) == 1 and came[0].finish_reason is None:  # as a rule
        return ((came[0].choice, came),)
    found: dict[int, list[TokenEvent]] = {}
    for each in came:
        if (told := _told(each)) is not None:
            found.setdefault(each.choice, []).append(told)
    return found.items()


def _told(event: TokenEvent) -> TokenEvent | None:
    if event.finish_reason is FinishReason.ERROR:  # its token, if it has one, became no text
        return None
    if event.finish_reason is FinishReason.CANCELLED:  # what was held back until then is its text
        return replace(event, finish_reason=None) if event.text else None
    return event


class Chunks:
    """Chunks of one response. ``base``: what all have; ``with_text``: the choice of a given index that says a text."""

    def __init__(self, base: dict[str, Any], with_text: Callable[[int, str], dict[str, Any]], *, usage: bool) -> None:
        self._base = base | ({"usage": None} if usage else {})
        self._with_text = with_text
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    def of(self, choice: dict[str, Any]) -> bytes:
        return event(self._base | {"choices": [choice]})

    def text(self, index: int, text: str) -> bytes:
        frame = self._frames.get(index)
        if frame is None:
            head, tail = self.of(self._with_text(index, _MARK)).split(to_json(_MARK).encode())
            frame = self._frames[index] = (head, tail)
        return frame[0] + to_json(text).encode("utf-8", "replace") + frame[1]

    def usage(self, usage: dict[str, Any]) -> bytes:
        return event(self._base | {"choices": [], "usage": usage})
