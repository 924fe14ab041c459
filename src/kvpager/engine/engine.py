"""Continuous batching: requests in, tokens out, over one model and one paged cache.

    submit -> engine/intake.py (tokens, limits) -> engine/queues.py (waiting, running) <-> engine/step_loop.py -> events

This is what clients see: requests come in, step by step their tokens go out, and in the end all is given back. How a
step goes and where each branch stands is in the files above. The engine owns the cache, and every call must come from
one thread (``cancel`` and ``submit`` too). Between two calls of ``step`` no step is open but that of the second lane,
where requests are computed whose pages do not fit on the device; so all books agree and can be checked.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as List
from contextlib import ExitStack
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kvpager.cache.retention_terms import Retention
from kvpager.config import Options, load_options
from kvpager.config.attend import Attend
from kvpager.engine.answers import answers
from kvpager.engine.check import check_books
from kvpager.engine.endings import EndedBy, Endings
from kvpager.engine.guide import Guide
from kvpager.engine.intake import Intake, Prompt
from kvpager.engine.loading import Loading
from kvpager.engine.opening import Opening
from kvpager.engine.prompt_source import PromptSource
from kvpager.engine.queues import Queues
from kvpager.engine.recording import Recording
from kvpager.engine.request import Branch, Completion, FinishReason, Request, TokenEvent, completion
from kvpager.engine.sampling_params import Sampling
from kvpager.engine.scheduler_view import SchedulerView
from kvpager.engine.setup import build
from kvpager.engine.statistics import EngineStatistics, WorkCounts, read_statistics
from kvpager.engine.step_loop import StepLoop
from kvpager.errors import ConfigError, QueueFull
from kvpager.prefix.hashing import Scope

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NO_SAMPLING = Sampling()
_NO_SCOPE = Scope()


class Engine:
    """Runs a model over a paged cache. A context: leaving it ends all requests and restores the model.

    ``model``: a folder, a ``.gguf`` file, a hub id, a short name, or a loaded transformers model (then give its
    ``tokenizer`` if prompts are texts). Options are those of ``kvpager.config.Options``, by keyword. ``ended``: says of
    each finished choice whether it ended in a tool call or ended a turn (``StopReason``), for policies that learn.

    Raises ConfigError for wrong options, ModelError or UnsupportedModel for a model that can't be loaded or would run
    wrong.
    """

    def __init__(
        self,
        model: str | PreTrainedModel,
        *,
        tokenizer: Any = None,
        options: Options | None = None,
        num_blocks: int | None = None,
        ended: EndedBy | None = None,
        **overrides: object,
    ) -> None:
        self.options = options or load_options(environ={}, overrides=overrides)
        if options is not None and overrides:
            raise ConfigError("give either options or keywords, not both")
        self._parts = parts = build(model, tokenizer, self.options, num_blocks)
        self.model, self.tokenizer = parts.model, parts.tokenizer
        self.cache, self.runner, self.limits = parts.cache, parts.runner, parts.limits
        self.layout = parts.limits.layout
        self.chunk = parts.limits.chunk
        self.vocab_size = parts.vocab_size
        self.max_tokens, self.max_request_tokens = parts.max_tokens, parts.max_request_tokens
        self._next_request = 0
        self._intake = Intake(parts, self.options)
        self._view = SchedulerView(self.cache, self.limits)
        self.loading = Loading(self.cache, self.chunk, self._view.admission_cost)
        self._opening = Opening(self.cache, self._view, self.chunk, self.options.attend)
        self._counts = WorkCounts()
        self._queues = Queues(self.cache, self._opening, self.loading, Endings(ended), self._counts)
        self._loop = StepLoop(parts, self._queues, self._view, self.loading, self._counts)
        self._is_open, self._is_stepping = True, False
        self._cancelled_meanwhile: list[int] = []
        self._resources = ExitStack()
        try:
            self._resources.enter_context(self.runner.running())
            if self.options.record is not None:
                recording = Recording(self.options.record, self.cache, perf_counter)
                self._queues.recording = self._resources.enter_context(recording)
        except BaseException:
            self._resources.close()
            self.cache.close()  # the folder of a disk tier is free again
            raise

    # -- requests -----------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        sampling: Sampling = _NO_SAMPLING,
        *,
        priority: int = 0,
        scope: Scope = _NO_SCOPE,
        index: int = 0,
        ended: EndedBy | None = None,
        retain: Iterable[Retention] = (),
        attend: Attend | str | None = None,
        guide: Guide | None = None,
        listener: Callable[[TokenEvent], None] | None = None,
    ) -> Request:
        """Queues a request. Raises RequestError, with the limit, for one that can never run or a full queue.

        ``priority``: who runs first, larger before smaller; it says nothing of how long pages are kept. ``ended``: says
        of each finished choice why it ended, instead of the engine's. ``retain``: what to pin, rank or let run out of
        its pages; ``Completion.retained`` has the answers. ``attend``: how it attends to its context, instead of as the
        options say; whatever is not exact is named in ``Completion.attention``. ``guide``: restricts what is chosen;
        each choice has a fork of it. ``listener`` is told of each token and of every ending, whether it came by itself,
        by an error or by ``cancel``; it must not call the engine.
        """
        self._check_open()
        ids = self.encode(prompt)
        attend = self._opening.attend_of(attend)
        limit = self._intake.check(ids, sampling, attend)
        if self.num_waiting >= self.options.max_waiting:
            raise QueueFull(self.num_waiting)
        request = Request(self._next_request, index, ids, sampling, priority, scope, limit, ended)
        request.retain, request.attend, request.listener = tuple(retain), attend, listener
        request.came = perf_counter()
        self._next_request += 1
        self._intake.add_branches(request, guide)
        self._queues.add(request)
        return request

    def prefetch(self, prompt: Prompt, *, scope: Scope = _NO_SCOPE) -> bool:
        """A hint that this prompt, or one that begins like it, will come: its pages are brought up from lower tiers.

        Starts nothing and waits for nothing; whether a load was begun. Nothing is done where the pool is busy: requests
        wait, or the pages would take blocks that running ones need soon.
        """
        self._check_open()
        ids = self.encode(prompt)
        if self._queues.waiting or not len(ids):
            return False
        self.loading.collect()
        return self.loading.prefetch(ids, scope, self._view.num_spare(self._view.running(self._queues.running)))

    def take_prompts_from(self, source: PromptSource | None) -> None:
        """K and V of prompts come from there, as far as it has them, instead of being computed: of branches that start
        from now on. None: from nowhere."""
        self._view.source = source

    def encode(self, prompt: Prompt) -> array[int]:
        """Token ids of a prompt. Texts go through the tokenizer, with its special tokens."""
        return self._intake.encode(prompt)

    def longest(self, attend: Attend | str | None = None) -> int:
        """Tokens that a request may have, prompt and output together, if it attends like that."""
        return self._intake.longest(self._opening.attend_of(attend))

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConfigError("this engine is closed; open another one")

    def cancel(self, request_id: int) -> bool:
        """Ends a request; its pages go back at once. False if it is not there any more.

        Called inside a step (by a hook in the model, or for an iterator that is garbage-collected just then), it acts
        when the step has ended.
        """
        request = self._queues.requests.get(request_id)
        if request is None:
            return False
        if self._is_stepping:
            self._cancelled_meanwhile.append(request_id)
            return True
        self._queues.cancel(request)
        self._loop.drop_ended()
        return True

    @property
    def has_work(self) -> bool:
        return self._queues.has_work

    @property
    def num_waiting(self) -> int:
        return len(self._queues.waiting)

    def generate(
        self,
        prompts: Iterable[Prompt],
        sampling: Sampling | List[Sampling] = _NO_SAMPLING,
        *,
        scope: Scope = _NO_SCOPE,
        ended: EndedBy | None = None,
        retain: Iterable[Retention] = (),
        attend: Attend | str | None = None,
    ) -> Iterator[Completion]:
        """Runs all prompts and yields each choice when it has finished. ``completion.index`` is the prompt's place.

        Leaving the iterator early cancels what is left. Raises RequestError before anything runs if one of a list of
        prompts can never run; if ``prompts`` is a stream, then when its turn comes, and the others are cancelled.
        """
        if isinstance(prompts, List):
            prompts = self._intake.check_all(prompts, sampling, self._opening.attend_of(attend))
        yield from answers(self, prompts, sampling, scope, ended, tuple(retain), attend)

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling = _NO_SAMPLING,
        *,
        priority: int = 0,
        scope: Scope = _NO_SCOPE,
        ended: EndedBy | None = None,
        retain: Iterable[Retention] = (),
        attend: Attend | str | None = None,
        guide: Guide | None = None,
    ) -> Iterator[TokenEvent]:
        """Runs one prompt, beside whatever else is queued or streamed, and yields its tokens.

        Each choice ends with an event that has a ``finish_reason``. Leaving early cancels the request.
        """
        events: deque[TokenEvent] = deque()
        request = self.submit(
            prompt,
            sampling,
            priority=priority,
            scope=scope,
            ended=ended,
            retain=retain,
            attend=attend,
            guide=guide,
            listener=events.append,
        )
        try:
            while events or not request.is_finished:
                if events:
                    yield events.popleft()
                else:
                    self.step()
        finally:
            self.cancel(request.id)

    # -- one step -----------------------------------------------------------------------------------------------

    def step(self) -> list[TokenEvent]:
        """Decides, computes one step and returns the tokens it gave. Does nothing where nothing is queued.

        Where nothing can run before a page has come from a lower tier, it waits for that a little and returns.

        If the model raises, the choices that were being computed end with an error and the exception goes on;
        everything else stays usable.
        """
        self._check_open()
        if self._is_stepping:
            raise ConfigError("step() was called inside a step")
        self._is_stepping = True
        try:
            return self._loop.step()
        finally:
            self._is_stepping = False
            while self._cancelled_meanwhile:
                self.cancel(self._cancelled_meanwhile.pop())

    # -- the engine as a whole ----------------------------------------------------------------------------------

    def branches(self) -> list[Branch]:
        """The running branches, the oldest first: for views."""
        return list(self._queues.running.values())

    def waiting_branches(self) -> list[Branch]:
        """Those in the queue, as they came: for views."""
        return list(self._queues.waiting.values())

    def statistics(self) -> EngineStatistics:
        return read_statistics(
            self._queues, self.loading, self._counts, self._opening.counts, self._loop.turns.num_ended
        )

    def weights_changed(self) -> None:
        """Tell the engine that the model's weights were replaced: nothing computed before is reused.

        Raises ConfigError while a request is under way, so that every answer comes from one version of the weights.
        """
        begun = len(self._queues.running) + sum(1 for branch in self._queues.waiting.values() if branch.output)
        if begun:
            raise ConfigError(f"{begun} requests were begun with the old weights; finish or cancel them first")
        self.runner.weights_changed()
        self.cache.set_fingerprint(self.runner.fingerprint())

    def check(self) -> None:
        """Raises InvariantError unless the engine's books and the cache's agree. For tests, and when idle."""
        check_books(self.cache, self.loading, self._queues)

    def close(self) -> None:
        """Cancels what is queued, frees the pages and restores the model. Closing again does nothing."""
        self._is_open = False
        for request_id in list(self._queues.requests):
            self.cancel(request_id)
        self._loop.close()
        self.cache.close()
        self._resources.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


__all__ = ["Completion", "Engine", "EngineStatistics", "FinishReason", "TokenEvent", "completion"]
