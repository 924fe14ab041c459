"""The choices of a completion in OpenAI's shape: whole ones, or piece by piece. Knows no request over HTTP."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvpager.engine.detokenizer import Detokenizer
from kvpager.engine.request import Completion, TokenEvent
from kvpager.engine.sampling import SampledToken
from kvpager.server.answer import Answer
from kvpager.server.openai.completion_request import CompletionRequest
from kvpager.server.openai.encoding import Tokens
from kvpager.server.openai.generation import Batch
from kvpager.server.openai.logprobs import columns, offsets_of, texts_of
from kvpager.server.openai.prompts import PromptInput
from kvpager.server.openai.streaming import Chunks, by_choice

_CONTEXT = 6  # tokens of the prompt that the text of the first token may depend on


def echo_of(given: PromptInput, tokens: Tokens, tokenizer: Any) -> str:
    """A prompt as it is repeated. Takes time for long token ids."""
    if isinstance(given, str):
        return given
    detokenizer = Detokenizer(tokenizer)
    return "".join([detokenizer.push(token).text for token in tokens])


class CompletionChoices:
    """``echoes``: the prompts as they are repeated; ``answers``: to each prompt. Choice i of prompt p has index
    p * n + i."""

    def __init__(
        self,
        body: CompletionRequest,
        prompts: Sequence[Tokens],
        echoes: Sequence[str],
        answers: Sequence[Answer],
        tokenizer: Any,
    ) -> None:
        self._body = body
        self._echoes = echoes
        self._answers = answers
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._texts = texts_of(tokenizer)
        self._lengths: dict[int, int] = {}  # characters of each choice that were streamed

    def _index(self, prompt: int, choice: int) -> int:
        return prompt * self._body.choices + choice

    # -- whole --

    def whole(self, prompt: int, done: Completion) -> dict[str, Any]:
        """Takes time where there are logprobs."""
        choice = with_text(self._index(prompt, done.choice), self._echoes[prompt] + done.text)
        choice |= {"logprobs": self._whole_logprobs(prompt, done), "finish_reason": done.finish_reason.value}
        if self._body.return_token_ids:
            choice |= {"token_ids": list(done.token_ids), "prompt_token_ids": list(self._prompts[prompt])}
        return choice

    def _whole_logprobs(self, prompt: int, done: Completion) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        echo = self._echoes[prompt]
        context = self._prompts[prompt][-_CONTEXT:]
        offsets = offsets_of(self._tokenizer, done.token_ids, context=context, start=len(echo))
        tokens = list(done.logprobs)
        if self._body.echo:
            offsets = offsets_of(self._tokenizer, self._prompts[prompt]) + offsets
            tokens = self._scored(prompt) + tokens
        return columns(self._texts, tokens, offsets, has_top=self._body.logprobs > 0)

    def _scored(self, prompt: int) -> list[SampledToken]:
        """The tokens of a prompt; nothing says how likely the first one was."""
        request = self._answers[prompt].request
        assert request is not None
        scored = [each for each in request.prompt_logprobs if each is not None]
        first = SampledToken(self._prompts[prompt][0])
        return [first, *(SampledToken(each.token, each.logprob, each.top) for each in scored)]

    # -- piece by piece --

    def speak(self, chunks: Chunks, batch: Batch) -> Iterable[bytes]:
        """Chunks of what came for a prompt."""
        is_plain = self._body.logprobs is None and not self._body.return_token_ids
        for choice, came in by_choice(batch.events):
            text = came[0].text if len(came) == 1 else "".join([each.text for each in came])
            index, reason = self._index(batch.prompt, choice), came[-1].finish_reason
            if index not in self._lengths:
                self._lengths[index] = len(self._echoes[batch.prompt])
                if self._body.echo:
                    yield chunks.of(self._prompt_piece(index, batch.prompt))
            if not is_plain or reason is not None:
                yield chunks.of(self._piece(index, text, came))
            elif text:
                yield chunks.text(index, text)

    def _prompt_piece(self, index: int, prompt: int) -> dict[str, Any]:
        piece = with_text(index, self._echoes[prompt])
        if self._body.logprobs is not None:
            offsets = offsets_of(self._tokenizer, self._prompts[prompt])
            piece["logprobs"] = columns(self._texts, self._scored(prompt), offsets, has_top=self._body.logprobs > 0)
        return piece

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


def with_text(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}
