"""Plays a programme of prompts on an engine, step by step, and remembers what the comparison needs.

Knows the engine. Does not know how frames are shown: it hands them to a screen.
"""

from collections import deque
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from kvpager.cli.demo.comparison import Asked, Comparison, Pool, is_fuller
from kvpager.cli.demo.frame import Frame, observe
from kvpager.cli.demo.prompts import DemoPrompt, Programme
from kvpager.cli.prompts import Message, conversation, encode_conversation, has_chat_template
from kvpager.cli.session import Interruption
from kvpager.config import format_size
from kvpager.engine.sampling_params import Sampling
from kvpager.types import FaultKind

if TYPE_CHECKING:
    from kvpager.engine.engine import Engine
    from kvpager.engine.request import Request

_TEMPERATURE = 0.7  # for requests with several choices: greedy ones would all be the same
_RATE_SECONDS = 3.0  # the tokens per second that are shown live are those of this last stretch


class Watcher(Protocol):
    def show(self, frame: Frame, rate: float) -> None:
        """A step has ended; ``rate``: tokens per second just now."""
        ...


class Demonstration:
    """A programme on an engine that was opened for it."""

    def __init__(self, engine: "Engine", programme: Programme) -> None:
        self._engine = engine
        self._programme = programme
        self._requests: list[Request] = []
        self._open: dict[int, tuple[DemoPrompt, list[Message]]] = {}  # by request: conversations that go on
        self._peak: Frame | None = None
        self._last: Frame | None = None

    @property
    def title(self) -> str:
        """What runs where, in a line."""
        engine = self._engine
        pool = engine.cache.pool
        return (
            f"{engine.options.model}, {self._programme.num_requests} requests in a pool of {pool.num_blocks} blocks "
            f"({format_size(pool.num_blocks * engine.layout.block_stride)})"
        )

    def play(self, watcher: Watcher, interruption: Interruption) -> None:
        """Submits every prompt at once, each follow-up when its answer is there, and runs all to the end.

        Raises KeyboardInterrupt between two steps if Ctrl-C was pressed.
        """
        for prompt in self._programme.prompts:
            self._ask(prompt, conversation(prompt.user, prompt.system or None))
        begin = perf_counter()
        rate = _Rate()
        while self._engine.has_work:
            self._engine.step()
            interruption.check()
            self._follow_up()
            seconds = perf_counter() - begin
            frame = observe(self._engine, self._requests, self._programme.num_requests, seconds)
            self._remember(frame)
            watcher.show(frame, rate.after(frame))

    def _ask(self, prompt: DemoPrompt, messages: list[Message]) -> None:
        if has_chat_template(self._engine):
            ids = encode_conversation(self._engine, messages)
        else:
            ids = self._engine.encode("\n\n".join(message["content"] for message in messages))
        sampling = Sampling(
            max_tokens=self._programme.max_tokens,
            n=prompt.choices,
            temperature=_TEMPERATURE if prompt.choices > 1 else 0.0,
        )
        request = self._engine.submit(ids, sampling, index=len(self._requests))
        self._requests.append(request)
        if prompt.follow_up:
            self._open[request.id] = (prompt, messages)

    def _follow_up(self) -> None:
        for request in [request for request in self._requests if request.id in self._open and request.is_finished]:
            prompt, messages = self._open.pop(request.id)
            answer = {"role": "assistant", "content": request.completions()[0].text}
            question = {"role": "user", "content": prompt.follow_up}
            self._ask(replace(prompt, choices=1, follow_up=""), [*messages, answer, question])

    def _remember(self, frame: Frame) -> None:
        self._last = frame
        if self._peak is None or is_fuller(frame, self._peak):
            self._peak = frame

    # -- afterwards ---------------------------------------------------------------------------------------------

    def compare(self) -> Comparison:
        """REQUIRES: it was played."""
        assert self._peak is not None
        assert self._last is not None
        layout, pool = self._engine.layout, self._engine.cache.pool
        return Comparison(
            pool=Pool(pool.num_blocks, layout.block_stride, layout.page_size, layout.bytes_per_token),
            peak=self._peak,
            last=self._last,
            asked=tuple(
                Asked(len(request.prompt), request.sampling.max_tokens, is_fork=branch.choice > 0)
                for request in self._requests
                for branch in request.branches
            ),
            context=self._context(),
        )

    def _context(self) -> int:
        """The longest sequence that a request may ask for, by the model and the options, tokens."""
        from kvpager.integrations.model_layout import max_context

        limits = (self._engine.options.max_context, max_context(self._engine.model.config))
        return min((limit for limit in limits if limit is not None), default=self._engine.max_tokens)

    def summary(self) -> str:
        assert self._last is not None
        last = self._last
        faults = ", ".join(f"{count} {kind.name.lower().replace('_', ' ')}" for kind, count in last.faults.items())
        return (
            f"{last.finished} requests, {last.generated_tokens:,} tokens in {last.seconds:.1f} s "
            f"({last.generated_tokens / max(last.seconds, 1e-9):.1f} tokens/s); faults: {faults}; "
            f"{last.preemptions} preemptions"
        )

    def as_dict(self) -> dict[str, object]:
        assert self._last is not None
        last, statistics = self._last, self._engine.statistics()
        return {
            "model": self._engine.options.model,
            "requests": len(self._requests),
            "sequences": sum(len(request.branches) for request in self._requests),
            "seconds": last.seconds,
            "generated_tokens": last.generated_tokens,
            "tokens_per_second": last.generated_tokens / max(last.seconds, 1e-9),
            "steps": statistics.steps,
            "model_seconds": statistics.model_seconds,
            "bookkeeping_seconds": statistics.bookkeeping_seconds,
            "sampling_seconds": statistics.sampling_seconds,
            "faults": {kind.name.lower(): last.faults.get(kind, 0) for kind in FaultKind},
            "preemptions": last.preemptions,
            "reclaimed_blocks": last.reclaimed_blocks,
            "tiers": {tier.name: {"pages": tier.pages, "hits": tier.hits} for tier in last.tiers},
        }


class _Rate:
    """Tokens per second over the last stretch of a run."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque([(0.0, 0)])

    def after(self, frame: Frame) -> float:
        self._seen.append((frame.seconds, frame.generated_tokens))
        while len(self._seen) > 2 and self._seen[1][0] <= frame.seconds - _RATE_SECONDS:
            self._seen.popleft()
        begin, tokens = self._seen[0]
        return (frame.generated_tokens - tokens) / max(frame.seconds - begin, 1e-9)
