"""The choices of a completion in OpenAI's shape: whole ones, or piece by piece. Knows no request over HTTP."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvpager.engine.detokenizer import Detokenizer
from kvpager.engine.request import Completion, FinishReason, TokenEvent
from kvpager.engine.sampling import SampledToken
from kvpager.server.openai.completion_request import CompletionRequest
from kvpager.server.openai.encoding import Tokens
from kvpager.server.openai.generation import Batch
from kvpager.server.openai.logprobs import TokenTexts, columns, offsets_of
from kvpager.server.openai.prompts import PromptInput
from kvpager.server.openai.streaming import Chunks, by_choice

_CONTEXT = 6  # tokens of the prompt that the text of the first token may depend on


class CompletionChoices:
    """``given``: the prompts as they were sent; ``prompts``: as tokens. Choice i of prompt p has index p * n + i."""

    def __init__(
        self, body: CompletionRequest, given: Sequence[PromptInput], prompts: Sequence[Tokens], tokenizer: Any
    ) -> None:
        self._body = body
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._texts = TokenTexts(tokenizer)
        self._echoes = [self._echo(one, tokens) for one, tokens in zip(given, prompts, strict=True)]
        self._lengths: dict[int, int] = {}  # characters of each choice that were streamed

    def _echo(self, given: PromptInput, tokens: Tokens) -> str:
        if not self._body.echo:
            return ""
        if isinstance(given, str):
            return given
        detokenizer = Detokenizer(self._tokenizer)
        return "".join(detokenizer.push(token).text for token in tokens)

    def index(self, prompt: int, choice: int) -> int:
        return prompt * self._body.choices + choice

    def whole(self, prompt: int, done: Completion) -> dict[str, Any]:
        echo = self._echoes[prompt]
        choice: dict[str, Any] = {
            "index": self.index(prompt, done.choice),
            "text": echo + done.text,
            "logprobs": self._whole_logprobs(prompt, done),
            "finish_reason": done.finish_reason.value,
        }
        if self._body.return_token_ids:
            choice |= {"token_ids": list(done.token_ids), "prompt_token_ids": list(self._prompts[prompt])}
        return choice

    def _whole_logprobs(self, prompt: int, done: Completion) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        tokens, own = self._prompts[prompt], done.token_ids
        echoed: Sequence[SampledToken] = ()
        offsets: list[int] = []
        if self._body.echo:
            echoed = _echoed(tokens, done)
            offsets = offsets_of(self._tokenizer, tokens)
        context = tokens[-_CONTEXT:]
        offsets += offsets_of(self._tokenizer, own, context=context, start=len(self._echoes[prompt]))
        return columns(self._texts, [*echoed, *done.logprobs], offsets, has_top=self._body.logprobs > 0)

    # -- piece by piece --

    def speak(self, chunks: Chunks, batch: Batch) -> Iterable[bytes]:
        """Chunks of what came for a prompt."""
        is_plain = self._body.logprobs is None and not self._body.return_token_ids
        for choice, came in by_choice(batch.events).items():
            text = "".join([each.text for each in came])
            index, reason = self.index(batch.prompt, choice), came[-1].finish_reason
            if index not in self._lengths:
                text = self._echoes[batch.prompt] + text
                self._lengths[index] = len(self._echoes[batch.prompt])
            if is_plain and reason is None:
                if text:
                    yield chunks.text(index, text)
            elif reason not in (FinishReason.ERROR, FinishReason.CANCELLED):
                yield chunks.of(self._piece(index, text, came))

    def _piece(self, index: int, text: str, came: Sequence[TokenEvent]) -> dict[str, Any]:
        reason = came[-1].finish_reason
        piece = with_text(index, text) | {"finish_reason": None if reason is None else reason.value}
        if self._body.logprobs is not None:
            tokens, offsets = [], []
            for each in came:
                if each.token is not None:
                    tokens.append(SampledToken(each.token, each.logprob, each.top))
                    offsets.append(self._lengths[index])
                self._lengths[index] += len(each.text)
            piece["logprobs"] = columns(self._texts, tokens, offsets, has_top=self._body.logprobs > 0)
        if self._body.return_token_ids:
            piece["token_ids"] = [each.token for each in came if each.token is not None]
        return piece


def _echoed(tokens: Tokens, done: Completion) -> list[SampledToken]:
    """Nothing says how likely the first token of a prompt is."""
    scored = [each for each in getattr(done, "prompt_logprobs", ()) if each is not None]
    return [SampledToken(tokens[0]), *(SampledToken(each.token, each.logprob, each.top) for each in scored)]


def with_text(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}
