"""The choices of a chat in OpenAI's shape: whole messages, or piece by piece. Knows no request over HTTP."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvpager.engine.request import Completion, FinishReason, TokenEvent
from kvpager.engine.sampling import SampledToken
from kvpager.eviction.policy import StopReason
from kvpager.server.openai.chat_request import ChatRequest
from kvpager.server.openai.generation import Batch
from kvpager.server.openai.logprobs import objects, texts_of
from kvpager.server.openai.streaming import Chunks, by_choice
from kvpager.server.openai.tool_calls import Call, CallStream, Said, parse


def called_names(body: ChatRequest) -> frozenset[str]:
    """Of the functions that an answer may call."""
    has_tools = bool(body.tools) and body.tool_choice != "none"
    return frozenset(tool.function.name for tool in body.tools or ()) if has_tools else frozenset()


def turn_ended(names: frozenset[str], done: Completion) -> StopReason:
    """For eviction policies that learn: whether a tool will answer, soon, or a human, later."""
    return StopReason.TOOL_CALL if names and parse(done.text, names).calls else StopReason.END_OF_TURN


class ChatChoices:
    """``must_call``: the answer is a call and nothing else."""

    def __init__(self, body: ChatRequest, tokenizer: Any, *, must_call: bool) -> None:
        self._body = body
        self._texts = texts_of(tokenizer)
        self._must_call = must_call
        self._names = called_names(body)
        self._streams: dict[int, CallStream] = {}
        self._has_text: set[int] = set()

    def whole(self, done: Completion) -> dict[str, Any]:
        said = parse(done.text, self._names) if self._names else Said(done.text)
        message: dict[str, Any] = {"role": "assistant", "content": said.text, "refusal": None}
        if said.calls:
            message |= {"content": said.text or None, "tool_calls": [call.as_json() for call in said.calls]}
        choice: dict[str, Any] = {
            "index": done.choice,
            "message": message,
            "logprobs": objects(self._texts, done.logprobs) if self._body.logprobs else None,
            "finish_reason": _reason(done.finish_reason, said),
        }
        if self._body.return_token_ids:
            choice["token_ids"] = list(done.token_ids)
        return choice

    # -- piece by piece --

    def first(self, chunks: Chunks) -> bytes:
        """One chunk for each choice: whose words will follow."""
        opening = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(chunks.of(with_delta(index, opening)) for index in range(self._body.choices))

    def speak(self, chunks: Chunks, batch: Batch) -> Iterable[bytes]:
        """Chunks of what came."""
        is_plain = not (self._body.logprobs or self._body.return_token_ids)
        for index, came in by_choice(batch.events):
            text = came[0].text if len(came) == 1 else "".join([each.text for each in came])
            reason = came[-1].finish_reason
            said = Said(text) if not self._names else self._held(index, text, is_last=reason is not None)
            if is_plain and reason is None:
                if said.text:
                    yield chunks.text(index, said.text)
            else:
                yield chunks.of(self._piece(index, said, came))

    def _held(self, index: int, text: str, *, is_last: bool) -> Said:
        stream = self._streams.get(index)
        if stream is None:
            stream = self._streams[index] = CallStream(self._names, is_call=self._must_call)
        told = stream.push(text)
        if not is_last:
            return Said(told)
        rest = stream.end()
        return Said(told + rest.text, rest.calls)

    def _piece(self, index: int, said: Said, came: Sequence[TokenEvent]) -> dict[str, Any]:
        delta: dict[str, Any] = {"content": said.text} if said.text else {}
        if said.calls:
            delta["tool_calls"] = [_numbered(number, call) for number, call in enumerate(said.calls)]
        piece = with_delta(index, delta) | {"finish_reason": _reason(came[-1].finish_reason, said)}
        if self._body.logprobs:
            tokens = [SampledToken(each.token, each.logprob, each.top) for each in came if each.token is not None]
            piece["logprobs"] = objects(self._texts, tokens)
        if self._body.return_token_ids:
            piece["token_ids"] = [each.token for each in came if each.token is not None]
        return piece


def _numbered(number: int, call: Call) -> dict[str, Any]:
    return {"index": number} | call.as_json()


def _reason(reason: FinishReason | None, said: Said) -> str | None:
    if reason is None:
        return None
    return "tool_calls" if said.calls and reason is FinishReason.STOP else reason.value


def with_delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def with_text(index: int, text: str) -> dict[str, Any]:
    return with_delta(index, {"content": text})
