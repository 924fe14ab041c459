"""From what a user typed to the token ids a model is given: prompt files and chat templates.

Knows the tokenizer's chat template. Does not know sampling, the engine's queue or what is done with an answer.
"""

import sys
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from kvpager.errors import ConfigError, ModelError, RequestError

Message = Mapping[str, str]  # role, content


class Encoder(Protocol):
    """What is needed of an engine here."""

    tokenizer: object

    def encode(self, prompt: str) -> "array[int]": ...


def read_prompts(given: Iterable[str], file: str | None, *, lines: bool = True) -> list[str]:
    """The prompts of a call: the arguments, then the lines of ``file`` (``-``: standard input) that are not empty; or
    its whole text, if not ``lines``.

    Raises ConfigError for a file that can't be read or no prompt at all, RequestError for an empty one.
    """
    prompts = list(given)
    for number, prompt in enumerate(prompts, 1):
        if not prompt.strip():
            raise RequestError(f"prompt {number} is empty; give it some text")
    if file is not None:
        text = _read(file)
        prompts += [part for part in (text.splitlines() if lines else [text]) if part.strip()]
    if not prompts:
        where = "it as an argument, or several in a file with --file" if file is None else "at least one line of text"
        raise RequestError(f"there is no prompt; give {where}")
    return prompts


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"prompt file {file} can't be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"prompt file {file} is not UTF-8 text: {error}") from error


def has_chat_template(engine: Encoder) -> bool:
    return bool(getattr(engine.tokenizer, "chat_template", None))


def encode_prompt(engine: Encoder, text: str, *, chat: bool, system: str | None = None) -> "array[int]":
    """Token ids of a prompt: as the first message of a conversation if ``chat``, else as it stands."""
    if chat:
        return encode_conversation(engine, conversation(text, system))
    return engine.encode(text if system is None else f"{system}\n\n{text}")


def conversation(text: str, system: str | None = None) -> list[Message]:
    """A conversation that begins with a user's ``text``."""
    first: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def encode_conversation(engine: Encoder, messages: list[Message]) -> "array[int]":
    """Token ids of a conversation, up to where the model's next answer begins.

    Raises ModelError without a chat template, RequestError where the template refuses the conversation.
    """
    if not has_chat_template(engine):
        raise ModelError("this model has no chat template, so it can't follow a conversation; use kvpager run --raw")
    tokenizer = engine.tokenizer
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)  # type: ignore[attr-defined]
    except Exception as error:  # a template is a program of the model's author, and raises what it likes
        raise RequestError(f"the model's chat template refuses this conversation: {error}") from error
    return array("i", tokenizer.encode(text, add_special_tokens=False))  # type: ignore[attr-defined]
