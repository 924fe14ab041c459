"""Plays a programme of prompts on an engine, step by step, and remembers what the comparison needs.

Knows the engine. Does not know how frames are shown: it hands them to a screen.
"""

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from kvpager.cli.demo.comparison import Asked, Comparison, Pool, is_fuller
from kvpager.cli.demo.frame import Frame, observe
from kvpager.cli.demo.prompts import DemoPrompt, Programme
from kvpager.cli.prompts import encode_prompt, has_chat_template
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
        self._peak: Frame | None = None
        self._last: Frame | None = None

    @property
    def title(self) -> str:
        """What runs where, in a line."""
        engine = self._engine
        pool = engine.cache.pool
        return (
            f"{engine.options.model}, {len(self._programme.prompts)} requests in a pool of {pool.num_blocks} blocks "
            f"({format_size(pool.num_blocks * engine.layout.block_stride)})"
        )

    def play(self, watcher: Watcher) -> None:
        """Submits everything at once and runs it to the end."""
        self._requests = [self._submit(place, prompt) for place, prompt in enumerate(self._programme.prompts)]
        begin = perf_counter()
        rate = _Rate()
        while self._engine.has_work:
            self._engine.step()
            frame = observe(self._engine, self._requests, perf_counter() - begin)
            self._remember(frame)
            watcher.show(frame, rate.after(frame))

    def _submit(self, place: int, prompt: DemoPrompt) -> "Request":
        chat = has_chat_template(self._engine)
        ids = encode_prompt(self._engine, prompt.user, chat=chat, system=prompt.system or None)
        sampling = Sampling(
            max_tokens=self._programme.max_tokens,
            n=prompt.choices,
            temperature=_TEMPERATURE if prompt.choices > 1 else 0.0,
        )
        return self._engine.submit(ids, sampling, index=place)

    def _remember(self, frame: Frame) -> None:
        self._last = frame
        if self._peak is None or is_fuller(frame, self._peak):
            self._peak = frame

    # -- afterwards ---------------------------------------------------------------------------------------------

    def compare(self) -> Comparison:
        """REQUIRES: it was played."""
        assert self._peak is not None and self._last is not None
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
