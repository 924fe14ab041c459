"""A request under way: one answer of the engine for each prompt. Waits for them, or merges what they say.

However it ends, nothing is left running: an answer that nobody waits for is cancelled, and its pages go back.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fastapi import Request

from kvpager.engine.request import Completion, FinishReason, TokenEvent
from kvpager.errors import KVPagerError
from kvpager.server.answer import Answer, Ask
from kvpager.server.errors import ApiError, ClientGone, as_api_error
from kvpager.server.service import Service


@dataclass(frozen=True, slots=True)
class Batch:
    """What came for one of the prompts since the last time."""

    prompt: int
    events: Sequence[TokenEvent]


async def begin(service: Service, asks: Sequence[Ask]) -> list[Answer]:
    """All of them, or none. Raises ApiError."""
    begun = await asyncio.gather(*(service.thread.submit(ask) for ask in asks), return_exceptions=True)
    answers = [each for each in begun if isinstance(each, Answer)]
    for each in begun:
        if isinstance(each, BaseException):
            cancel(answers)
            raise as_api_error(each) if isinstance(each, KVPagerError) else each
    return answers


def cancel(answers: Sequence[Answer]) -> None:
    for answer in answers:
        answer.cancel()


async def completions(request: Request, answers: Sequence[Answer]) -> list[list[Completion]]:
    """Of each prompt. Raises ApiError if one of them failed, after all have ended; ClientGone."""
    done = asyncio.gather(*(answer.completions() for answer in answers))
    gone = asyncio.create_task(_wait_until_gone(request))
    try:
        await asyncio.wait((done, gone), return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise ClientGone
        found = done.result()
    except KVPagerError as error:
        raise as_api_error(error) from None
    finally:
        gone.cancel()
        done.cancel()
        cancel(answers)
        with suppress(asyncio.CancelledError, Exception):
            await done
    for answer, choices in zip(answers, found, strict=True):
        for choice in choices:
            check_ending(answer, choice.finish_reason)
    return found


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def check_ending(answer: Answer, reason: FinishReason | None) -> None:
    """Raises ApiError for an ending that is no answer. What exactly went wrong is in the log: it may quote a text."""
    if reason is FinishReason.ERROR and answer.is_expired:
        raise ApiError(504, "the request took longer than one may, before its first token", code="timeout")
    if reason is FinishReason.ERROR:
        raise ApiError(500, "this request failed while it was computed", code="generation_failed")
    if reason is FinishReason.CANCELLED:
        raise ApiError(503, "the server ended this request; try again", code="cancelled", retry_after=2)


async def batches(answers: Sequence[Answer]) -> AsyncIterator[Sequence[Batch]]:
    """What came together, until all have ended. Raises what ``Answer.events`` raises, after all that came before."""
    if len(answers) == 1:
        async for events in answers[0].events():
            yield (Batch(0, events),)
        return
    queue: asyncio.Queue[Batch | Exception | None] = asyncio.Queue()

    async def follow(prompt: int, answer: Answer) -> None:
        try:
            async for events in answer.events():
                queue.put_nowait(Batch(prompt, events))
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(follow(prompt, answer)) for prompt, answer in enumerate(answers)]
    try:
        left = len(tasks)
        while left:
            news = [await queue.get()]
            while not queue.empty():
                news.append(queue.get_nowait())
            if came := [each for each in news if isinstance(each, Batch)]:
                yield came
            for each in news:
                if isinstance(each, Exception):
                    raise each
            left -= news.count(None)
    finally:
        for task in tasks:
            task.cancel()
