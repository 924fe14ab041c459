"""Continuous batching: requests in, tokens out, over one model and one paged cache.

    submit -> [waiting queue] -> (load) -> decide() -> cache.step -> model -> sample -> events
                    ^                          |                                  |
                    +--------- preempt --------+                                  +-> finished branches give pages back

The engine carries out what engine/scheduler.py decides of what engine/scheduler_view.py shows, once engine/loading.py
has brought up what lower tiers have. It owns the cache, and every call must come from one thread (``cancel`` and
``submit`` too). Between two calls of ``step`` no step is open, so all books agree and can be checked.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as List
from contextlib import ExitStack
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from kvpager.cache.retention_terms import Retention
from kvpager.cache.sequence import Sequence
from kvpager.config import Options, load_options
from kvpager.engine.answers import answers
from kvpager.engine.check import check_engine
from kvpager.engine.endings import EndedBy, Endings
from kvpager.engine.intake import Intake, Prompt
from kvpager.engine.loading import Loading
from kvpager.engine.output import take
from kvpager.engine.recording import Recording
from kvpager.engine.request import Branch, BranchState, Completion, FinishReason, Request, TokenEvent, completion
from kvpager.engine.sampling import SampledToken, SamplingFailure, sample
from kvpager.engine.sampling_params import Sampling
from kvpager.engine.scheduler import Decision, Running, decide, effective_rank, new_blocks
from kvpager.engine.scheduler_view import SchedulerView, queue_order
from kvpager.engine.setup import build
from kvpager.engine.statistics import EngineStatistics, StartCounts
from kvpager.errors import ConfigError, RequestError
from kvpager.prefix.hashing import Scope
from kvpager.types import TierKind

_HUNG_SECONDS = 60.0  # without a token, while transfers that do not end hold the blocks that are needed
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
        self.max_tokens = parts.max_tokens
        self._requests: dict[int, Request] = {}
        self._running: dict[int, Branch] = {}
        self._waiting: dict[int, Branch] = {}
        self._forking: dict[int, Branch] = {}
        self._streams: dict[int, deque[TokenEvent]] = {}  # events of the requests that somebody streams
        self._next_request = 0
        self._intake = Intake(parts, self.options)
        self._endings = Endings(ended)
        self._view = SchedulerView(self.cache, self.limits)
        self.loading = Loading(self.cache, self.chunk, self._view.admission_cost)
        self._starts = StartCounts()
        self._generated_tokens = self._preemptions = self._steps = self._finished = 0
        self._model_seconds = self._bookkeeping_seconds = self._sampling_seconds = 0.0
        self._stuck_since: float | None = None
        self._is_open, self._is_stepping = True, False
        self._cancelled_meanwhile: list[int] = []
        self._resources = ExitStack()
        self._recording: Recording | None = None
        try:
            self._resources.enter_context(self.runner.running())
            if self.options.record is not None:
                recording = Recording(self.options.record, self.cache, perf_counter)
                self._recording = self._resources.enter_context(recording)
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
    ) -> Request:
        """Queues a request. Raises RequestError, with the limit, for one that can never run or a full queue.

        ``priority``: who runs first, larger before smaller; it says nothing of how long pages are kept. ``ended``: says
        of each finished choice why it ended, instead of the engine's. ``retain``: what to pin, rank or let run out of
        its pages; ``Completion.retained`` has the answers.
        """
        self._check_open()
        ids = self.encode(prompt)
        self._intake.check(ids, sampling)
        if len(self._waiting) >= self.options.max_waiting:
            raise RequestError(f"the queue is full: {len(self._waiting)} requests are waiting; retry later")
        request = Request(self._next_request, index, ids, sampling, priority, scope, self.max_tokens, ended)
        request.retain = tuple(retain)
        request.came = perf_counter()
        self._next_request += 1
        self._intake.add_branches(request)
        for branch in request.branches:
            (self._forking if branch.choice else self._waiting)[branch.key] = branch
        self._requests[request.id] = request
        return request

    def prefetch(self, prompt: Prompt, *, scope: Scope = _NO_SCOPE) -> bool:
        """A hint that this prompt, or one that begins like it, will come: its pages are brought up from lower tiers.

        Starts nothing and waits for nothing; whether a load was begun. Nothing is done where the pool is busy: requests
        wait, or the pages would take blocks that running ones need soon.
        """
        self._check_open()
        ids = self.encode(prompt)
        if self._waiting or not len(ids):
            return False
        self.loading.collect()
        return self.loading.prefetch(ids, scope, self._view.num_spare(self._view.running(self._running)))

    def encode(self, prompt: Prompt) -> "array[int]":
        """Token ids of a prompt. Texts go through the tokenizer, with its special tokens."""
        return self._intake.encode(prompt)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConfigError("this engine is closed; open another one")

    def cancel(self, request_id: int) -> bool:
        """Ends a request; its pages go back at once. False if it is not there any more.

        Called inside a step (by a hook in the model, or for an iterator that is garbage-collected just then), it acts
        when the step has ended.
        """
        request = self._requests.get(request_id)
        if request is None:
            return False
        if self._is_stepping:
            self._cancelled_meanwhile.append(request_id)
            return True
        for branch in request.branches:
            if branch.state is not BranchState.FINISHED:
                self._deliver(branch.event(None, self._finish(branch, FinishReason.CANCELLED)))
        return True

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting or self._forking)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def generate(
        self,
        prompts: Iterable[Prompt],
        sampling: Sampling | List[Sampling] = _NO_SAMPLING,
        *,
        scope: Scope = _NO_SCOPE,
        ended: EndedBy | None = None,
        retain: Iterable[Retention] = (),
    ) -> Iterator[Completion]:
        """Runs all prompts and yields each choice when it has finished. ``completion.index`` is the prompt's place.

        Leaving the iterator early cancels what is left. Raises RequestError before anything runs if one of a list of
        prompts can never run; if ``prompts`` is a stream, then when its turn comes, and the others are cancelled.
        """
        if isinstance(prompts, List):
            prompts = self._intake.check_all(prompts, sampling)
        yield from answers(self, prompts, sampling, scope, ended, tuple(retain))

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling = _NO_SAMPLING,
        *,
        priority: int = 0,
        scope: Scope = _NO_SCOPE,
        ended: EndedBy | None = None,
        retain: Iterable[Retention] = (),
    ) -> Iterator[TokenEvent]:
        """Runs one prompt, beside whatever else is queued or streamed, and yields its tokens.

        Each choice ends with an event that has a ``finish_reason``. Leaving early cancels the request.
        """
        request = self.submit(prompt, sampling, priority=priority, scope=scope, ended=ended, retain=retain)
        events = self._streams[request.id] = deque()
        try:
            while events or not request.is_finished:
                if events:
                    yield events.popleft()
                else:
                    self.step()
        finally:
            del self._streams[request.id]
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
            return self._run_step()
        finally:
            self._is_stepping = False
            while self._cancelled_meanwhile:
                self.cancel(self._cancelled_meanwhile.pop())

    def _run_step(self) -> list[TokenEvent]:
        begin = perf_counter()
        self.loading.collect()
        self.cache.retention.tick()
        running, queue = self._view.running(self._running), queue_order(self._waiting.values())
        if self.loading.is_used:
            self.loading.advance(queue, self._view.num_spare(running), is_idle=not running)
        self.cache.let_pins_yield(False)
        decision = self._decide(running, queue)
        if not decision.work and self.has_work and not self.loading.num_loading and self.cache.retention.num_pinned:
            self.cache.let_pins_yield(True)  # until the next pass
            decision = self._decide(running, queue)
        for key in decision.preempted:
            self._preempt(self._running[key])
        for admission in decision.admitted:
            self._admit(self._waiting[admission.key], admission.prefix_tokens)
        for branch in self._waiting.values():
            branch.waited += 1
        self._bookkeeping_seconds += perf_counter() - begin
        work = [(self._running[key], count) for key, count in decision.work.items()]
        if not work:
            if self.has_work:
                self._rest(queue, begin)
            return []
        self._stuck_since = None
        self._steps += 1
        pieces = [work] if self.chunk is None else [[item] for item in work]
        return [event for piece in pieces if self._still_fits(piece) for event in self._compute(piece)]

    def _decide(self, running: list[Running], queue: list[Branch]) -> Decision:
        waiting = self._view.waiting(queue, self.loading.turn)
        return decide(self.limits, running, waiting, self.cache.num_available, self.loading.reserved)

    def _rest(self, queue: list[Branch], now: float) -> None:
        """Nothing can run. Transfers are waited for, but not without end: who needs the blocks they hold then fails."""
        waits_for_load = self.loading.num_loading > 0
        if not self.loading.rest() or waits_for_load or self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > _HUNG_SECONDS:
            running = sorted(self._running.values(), key=lambda branch: (-branch.rank, branch.key))
            self._fail((running or queue)[0], "a lower tier does not answer and holds the blocks that it needs")

    def _fail(self, branch: Branch, error: str) -> None:
        """Ends a branch, and those that were to be forked from it."""
        for each in (branch, *branch.forks_to_come()):
            self._finish(each, FinishReason.ERROR, error)
            self._deliver(each.event(None, ""))

    def _still_fits(self, work: list[tuple[Branch, int]]) -> bool:
        """Whether the blocks that were counted on are there: between two steps of a pass, cached pages go down."""
        if self.chunk is None or not self.loading.is_used:
            return True
        sequences = [branch.running_sequence for branch, _ in work]
        needed = int(self.cache.num_copies(sequences).sum())
        for seq, (_, count) in zip(sequences, work, strict=True):
            needed += new_blocks(self.layout, seq.length, seq.length + count)
        return needed <= self.cache.num_available

    def _admit(self, branch: Branch, prefix_tokens: int) -> None:
        del self._waiting[branch.key]
        branch.rank = effective_rank(branch.request.priority, branch.waited)
        branch.move(BranchState.RUNNING)
        publish_until = None if self.chunk is None else len(branch.request.prompt) // self.chunk * self.chunk
        branch.sequence = self.cache.sequence(
            branch.known_tokens(),
            scope=branch.request.scope,
            max_prefix=prefix_tokens,
            publish_until=publish_until,
            came_up=self.loading.leave(branch),
            retain=branch.request.retain,
        )
        if branch.request.matched is None:
            branch.request.matched = branch.sequence.prefix_tokens
        branch.sequence.prompt_tokens = len(branch.request.prompt)  # of what is known, some may be output
        branch.sequence.matched_tokens = branch.request.matched  # what is found of what it lost itself doesn't count
        found = {tier: tokens for tier, tokens in branch.sequence.prefix_by_tier.items() if tokens}
        if branch.prefix_by_tier is None:
            branch.prefix_by_tier = found
            self._starts.started(len(branch.request.prompt), found)
        else:
            self._starts.resumed(branch.lost, found)
        self._running[branch.key] = branch

    def _preempt(self, branch: Branch) -> None:
        seq = branch.running_sequence
        branch.lost = seq.length
        self.cache.retention.suspend(seq)
        seq.free()
        branch.sequence = None
        branch.preemptions += 1
        self._preemptions += 1
        del self._running[branch.key]
        branch.move(BranchState.WAITING)
        self._waiting[branch.key] = branch

    def _compute(self, work: list[tuple[Branch, int]]) -> list[TokenEvent]:
        begin = perf_counter()
        branches = [branch for branch, _ in work]
        counts = np.array([count for _, count in work], np.int64)
        sequences = [branch.running_sequence for branch in branches]
        ends = np.cumsum(counts) - 1
        due = [i for i, (branch, count) in enumerate(work) if sequences[i].length + count == branch.num_known]
        prefill = sum(
            count for (branch, count), seq in zip(work, sequences, strict=True) if branch.num_known - seq.length > 1
        )
        try:
            with self.cache.step_over(sequences, counts) as step:
                opened = perf_counter()
                logits = self.runner.forward(step.batch, _new_tokens(sequences, counts), ends[due])
                computed = perf_counter()
            closed = perf_counter()
            chosen = self._sample([branches[i] for i in due], logits)
        except BaseException as error:
            for branch in branches:
                self._fail(branch, f"the model failed: {error}")
            raise
        self._bookkeeping_seconds += opened - begin + closed - computed
        self._model_seconds += computed - opened
        self.loading.model.stepped(prefill, int(counts.sum()) - prefill, computed - opened)
        for i in due:
            self._fork_waiting(branches[i])
        events = [self._take(branch, result) for branch, result in chosen]
        for event in events:
            self._deliver(event)
        self._sampling_seconds += perf_counter() - closed
        return events

    def _sample(self, branches: list[Branch], logits: Tensor) -> list[tuple[Branch, SampledToken | SamplingFailure]]:
        """The next token of each branch, and of those that will be forked from it; ``logits`` [branches, vocab]."""
        chosen: list[Branch] = []
        rows: list[int] = []
        for row, branch in enumerate(branches):
            family = [branch, *branch.forks_to_come()]
            chosen.extend(family)
            rows.extend([row] * len(family))
        if len(rows) != len(branches):
            logits = logits[rows]
        return list(zip(chosen, sample(logits, [branch.sampler for branch in chosen]), strict=True))

    def _fork_waiting(self, branch: Branch) -> None:
        """The prompt is computed: the other choices go on from it."""
        for twin in branch.forks_to_come():
            twin.sequence = branch.running_sequence.fork()
            twin.rank = branch.rank
            twin.prefix_by_tier = {TierKind.DEVICE: len(branch.request.prompt)}
            twin.move(BranchState.RUNNING)
            del self._forking[twin.key]
            self._running[twin.key] = twin

    def _take(self, branch: Branch, result: SampledToken | SamplingFailure) -> TokenEvent:
        taken = take(branch, result, self._parts.end_tokens)
        self._generated_tokens += taken.sampled is not None
        text = taken.text
        if taken.ended is not None:
            text += self._finish(branch, taken.ended, taken.error)
        return branch.event(taken.sampled, text)

    def _deliver(self, event: TokenEvent) -> None:
        """To whoever streams its request, if anybody does."""
        if event.request_id in self._streams:
            self._streams[event.request_id].append(event)

    def _finish(self, branch: Branch, reason: FinishReason, error: str = "") -> str:
        """Ends a branch, gives its pages back and returns the text that was held back."""
        branch.finish_reason = reason
        branch.error = error
        rest = ""
        try:
            if branch.detokenizer is not None and reason is not FinishReason.ERROR:
                rest = branch.detokenizer.flush().text
                branch.text.append(rest)
            branch.stop = self._endings.reason(branch)
        finally:
            self._leave(branch)
        return rest

    def _leave(self, branch: Branch) -> None:
        if branch.sequence is not None:
            branch.sequence.free(branch.stop)
            branch.retained = branch.sequence.retained
            branch.sequence = None
        for group in (self._running, self._waiting, self._forking):
            group.pop(branch.key, None)
        self.loading.leave(branch)
        branch.move(BranchState.FINISHED)
        request = branch.request
        if request.is_finished and self._requests.pop(request.id, None) is not None:
            self._finished += 1
            if self._recording is not None:
                self._recording.ended(request, branch.stop)

    # -- the engine as a whole ----------------------------------------------------------------------------------

    def branches(self) -> list[Branch]:
        """The running branches, the oldest first: for views."""
        return list(self._running.values())

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            running=len(self._running),
            waiting=len(self._waiting) + len(self._forking),
            loading=self.loading.num_loading,
            finished_requests=self._finished,
            prompt_tokens=self._starts.prompt_tokens,
            prefix_tokens=self._starts.prefix_tokens,
            prefix_by_tier=dict(self._starts.prefix_by_tier),
            generated_tokens=self._generated_tokens,
            preemptions=self._preemptions,
            resumptions=self._starts.resumptions(),
            loads=self.loading.model.counts(),
            loads_explained=self.loading.model.explain(),
            steps=self._steps,
            model_seconds=self._model_seconds,
            bookkeeping_seconds=self._bookkeeping_seconds,
            sampling_seconds=self._sampling_seconds,
        )

    def weights_changed(self) -> None:
        """Tell the engine that the model's weights were replaced: nothing computed before is reused.

        Raises ConfigError while a request is under way, so that every answer comes from one version of the weights.
        """
        begun = len(self._running) + sum(1 for branch in self._waiting.values() if branch.output)
        if begun:
            raise ConfigError(f"{begun} requests were begun with the old weights; finish or cancel them first")
        self.runner.weights_changed()
        self.cache.set_fingerprint(self.runner.fingerprint())

    def check(self) -> None:
        """Raises InvariantError unless the engine's books and the cache's agree. For tests, and when idle."""
        check_engine(self)

    def close(self) -> None:
        """Cancels what is queued, frees the pages and restores the model. Closing again does nothing."""
        self._is_open = False
        for request_id in list(self._requests):
            self.cancel(request_id)
        self.cache.close()
        self._resources.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _new_tokens(sequences: list[Sequence], counts: np.ndarray) -> "array[int]":
    tokens = array("i")
    for seq, count in zip(sequences, counts.tolist(), strict=True):
        assert seq.tokens is not None
        start = seq.length
        tokens.extend(seq.tokens[start : start + count])
    return tokens


__all__ = ["Completion", "Engine", "EngineStatistics", "FinishReason", "TokenEvent", "completion"]
