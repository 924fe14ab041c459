"""Talks with a model. Each turn sends the whole conversation; the pages of earlier turns are found in the prefix
index, so only what is new is computed. Ctrl-C stops an answer, Ctrl-D ends. Commands: /help /reset /stats /exit.

With --session NAME and a disk tier the conversation is kept, and goes on after a restart with its pages from the disk.
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
from kvpager.cli.tier_hits import hits_by_name, in_words
from kvpager.cli.usage import usage, usage_in_words
from kvpager.config import DiskTier
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
    parser.add_argument(
        "--session", metavar="NAME", help="keep the conversation in the disk tier's folder, and go on with it next time"
    )
    add_sampling(parser)
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    options, sampling = chosen_options(arguments), chosen_sampling(arguments)
    if sampling.n > 1:
        raise ConfigError(f"a conversation goes on with one answer, so --n {sampling.n} makes no sense; leave it out")
    if arguments.session is not None and not any(isinstance(tier, DiskTier) for tier in options.tiers):
        raise ConfigError("--session needs a tier that outlives the process; add --tier disk=FOLDER,size=200GiB")
    from kvpager.cli.session import open_engine

    with open_engine(options) as engine:
        chat = Chat(engine, sampling, arguments.system, as_json=arguments.json, session=arguments.session)
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
    """A conversation and what has been said in it. ``session``: the name under which it is kept."""

    def __init__(
        self, engine: "Engine", sampling: "Sampling", system: str | None, *, as_json: bool, session: str | None = None
    ) -> None:
        self._engine = engine
        self._sampling = sampling
        self._opening: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._as_json = as_json
        self._session = session
        self.messages = list(self._opening)
        if session is not None:
            self._resume(session)

    def _resume(self, session: str) -> None:
        saved = self._engine.cache.load_session(session)
        if saved is None:
            return
        self.messages = json.loads(saved.note)
        self._engine.prefetch(saved.tokens)  # while the user types
        turns = sum(message["role"] == "user" for message in self.messages)
        said = "1 turn" if turns == 1 else f"{turns} turns"
        _note(f"going on with the session: {said}, {len(saved.tokens)} tokens; /reset begins anew")

    def _keep(self) -> None:
        """The session is what was said so far, and the tokens of it as the next prompt will begin."""
        if self._session is not None:
            tokens = encode_conversation(self._engine, self.messages) if self.messages else ()
            self._engine.cache.save_session(self._session, tokens, note=json.dumps(self.messages))

    def take(self, line: str) -> bool:
        """Answers a line, or carries out a command. False if the conversation is to end."""
        if not line.startswith("/"):
            self._answer(line)
        elif line == "/exit":
            return False
        elif line == "/reset":
            self.messages = list(self._opening)
            self._keep()
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
        self._keep()

    def _generate(self, messages: list[Message]) -> "Completion":
        from kvpager.cli.session import interruptible
        from kvpager.eviction.policy import StopReason

        request = self._engine.submit(
            encode_conversation(self._engine, messages),
            self._sampling,
            ended=lambda answer: StopReason.END_OF_TURN,  # a human reads it and types
        )
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
                "prefix_by_tier": hits_by_name(answer.prefix_by_tier),
                "usage": usage(answer),
                "seconds": seconds,
            }
            print(json.dumps(turn, ensure_ascii=False), flush=True)
            return
        print(flush=True)
        if answer.error:
            _note(answer.error)
        cached = f"{answer.prefix_tokens} of {answer.prompt_tokens} prompt tokens cached"
        _note(
            f"[{count} tokens in {seconds:.1f} s, {count / max(seconds, 1e-9):.1f} tokens/s; "
            f"{cached}{in_words(answer.prefix_by_tier)}{usage_in_words([answer])}; {answer.finish_reason.value}]"
        )


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
