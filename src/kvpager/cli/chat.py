"""Talks with a model. Each turn sends the whole conversation; the pages of earlier turns are found in the prefix
index, so only what is new is computed. Ctrl-C stops an answer, Ctrl-D ends. Commands: /help /reset /stats /exit.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

from kvpager.cli.arguments import add_common, add_sampling, chosen_options, chosen_sampling, did_you_mean
from kvpager.cli.prompts import Message, encode_conversation
from kvpager.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from kvpager.engine.engine import Engine
    from kvpager.engine.request import Completion
    from kvpager.engine.sampling_params import Sampling

_COMMANDS = {
    "/help": "list the commands",
    "/reset": "forget the conversation",
    "/stats": "show the pages, faults and prefix hits so far",
    "/exit": "end (and so does Ctrl-D)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="instructions that go before the conversation")
    add_sampling(parser)
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    options, sampling = chosen_options(arguments), chosen_sampling(arguments)
    if sampling.n > 1:
        raise ConfigError(f"a conversation goes on with one answer, so --n {sampling.n} makes no sense; leave it out")
    from kvpager.cli.session import open_engine

    with open_engine(options) as engine:
        chat = Chat(engine, sampling, arguments.system, as_json=arguments.json)
        encode_conversation(engine, [{"role": "user", "content": "?"}])  # a model that can't chat is refused at once
        for line in _lines():
            if not chat.take(line):
                break
    return 0


def _lines() -> Iterator[str]:
    """What the user types, without empty lines; Ctrl-C throws a line away in a terminal."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print("Type a message, or /help. Ctrl-C stops an answer, Ctrl-D ends.", file=sys.stderr)
        _enable_line_editing()
    while True:
        try:
            line = input("> " if is_terminal else "").strip()
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            print(file=sys.stderr)
            continue
        except EOFError:
            return
        except UnicodeDecodeError as error:
            raise ConfigError(f"the input is not text in this terminal's encoding: {error}") from error
        if line:
            yield line


def _enable_line_editing() -> None:
    with suppress(ImportError):
        import readline  # noqa: F401  (its import is its effect)


class Chat:
    """A conversation and what has been said in it."""

    def __init__(self, engine: "Engine", sampling: "Sampling", system: str | None, *, as_json: bool) -> None:
        self._engine = engine
        self._sampling = sampling
        self._opening: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._as_json = as_json
        self.messages = list(self._opening)

    def take(self, line: str) -> bool:
        """Answers a line, or carries out a command. False if the conversation is to end."""
        if not line.startswith("/"):
            self._answer(line)
        elif line == "/exit":
            return False
        elif line == "/reset":
            self.messages = list(self._opening)
            _note("the conversation is forgotten; its pages stay findable until they are reclaimed")
        elif line == "/stats":
            _note(str(self._engine.cache.statistics()))
        elif line == "/help":
            _note("\n".join(f"{name:8}{meaning}" for name, meaning in _COMMANDS.items()))
        else:
            _note(f"unknown command {line!r}; {did_you_mean(line, _COMMANDS)}")
        return True

    def _answer(self, line: str) -> None:
        """One turn. A turn that can't run leaves the conversation as it was."""
        asked: list[Message] = [*self.messages, {"role": "user", "content": line}]
        begin = perf_counter()
        try:
            answer = self._generate(asked)
        except RequestError as error:
            _note(f"{error}. The message was not taken; /reset begins anew")
            return
        self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        self._conclude(answer, perf_counter() - begin)

    def _generate(self, messages: list[Message]) -> "Completion":
        from kvpager.cli.session import interruptible

        request = self._engine.submit(encode_conversation(self._engine, messages), self._sampling)
        with interruptible() as interruption:
            while not request.is_finished:
                if interruption.is_asked:
                    self._engine.cancel(request.id)
                    break
                for event in self._engine.step():
                    if not self._as_json:
                        print(event.text, end="", flush=True)
        return request.completions()[0]

    def _conclude(self, answer: "Completion", seconds: float) -> None:
        count = len(answer.token_ids)
        if self._as_json:
            turn = {
                "text": answer.text,
                "token_ids": list(answer.token_ids),
                "finish_reason": answer.finish_reason.value,
                "prompt_tokens": answer.prompt_tokens,
                "prefix_tokens": answer.prefix_tokens,
                "seconds": seconds,
            }
            print(json.dumps(turn, ensure_ascii=False), flush=True)
            return
        print(flush=True)
        if answer.error:
            _note(answer.error)
        _note(
            f"[{count} tokens in {seconds:.1f} s, {count / max(seconds, 1e-9):.1f} tokens/s; {answer.prefix_tokens} of "
            f"{answer.prompt_tokens} prompt tokens cached; {answer.finish_reason.value}]"
        )


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
