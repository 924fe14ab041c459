"""Continuous batching: requests in, tokens out, over one model and one paged cache.

    submit -> [waiting queue] -> (load) -> decide() -> cache.step -> model -> sample -> events
                    ^                          |                                  |
                    +--------- preempt --------+                                  +-> finished branches give pages back

The engine carries out what engine/scheduler.py decides of what engine/scheduler_view.py shows, once engine/loading.py
has brought up what lower tiers have. It owns the cache, and every call must come from one thread (``cancel`` and
``submit`` too). Between two calls of ``step`` no step is open but that of the second lane, where requests are computed
whose pages do not fit on the device (engine/slow_turns.py); so all books agree and can be checked.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as List
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from types import TracebackType
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from kvpager.cache.retention_terms import Retention
from kvpager.config import Options, load_options
from kvpager.config.attend import Attend
from kvpager.engine.answers import answers
from kvpager.engine.check import check_engine
from kvpager.engine.choosing import Chosen, choose, keep_scores
from kvpager.engine.endings import EndedBy, Endings
from kvpager.engine.guide import Guide
from kvpager.engine.intake import Intake, Prompt
from kvpager.engine.loading import Loading
from kvpager.engine.opening import Opening
from kvpager.engine.output import take
from kvpager.engine.piece import Piece
from kvpager.engine.recording import Recording
from kvpager.engine.request import Branch, BranchState, Completion, FinishReason, Request, TokenEvent, completion
from kvpager.engine.sampling_params import Sampling
from kvpager.engine.scheduler import Admission, Decision, Running, decide, effective_rank, num_kept
from kvpager.engine.scheduler_view import SchedulerView, queue_order
from kvpager.engine.setup import build
from kvpager.engine.slow_lane import Abandoned
from kvpager.engine.slow_steps import SlowStep, SlowSteps
from kvpager.engine.slow_turns import SlowTurns
from kvpager.engine.standstill import Standstill
from kvpager.engine.statistics import EngineStatistics, WorkCounts, read_statistics
from kvpager.errors import ConfigError, PagesLost, QueueFull
from kvpager.prefix.hashing import Scope
from kvpager.types import TierKind

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
        self._requests: dict[int, Request] = {}
        self._running: dict[int, Branch] = {}
        self._waiting: dict[int, Branch] = {}
        self._forking: dict[int, Branch] = {}
        self._next_request = 0
        self._intake = Intake(parts, self.options)
        self._endings = Endings(ended)
        self._view = SchedulerView(self.cache, self.limits)
        self.loading = Loading(self.cache, self.chunk, self._view.admission_cost)
        self._opening = Opening(self.cache, self._view, self.chunk, self.options.attend)
        self._counts = WorkCounts()
        self._slow = SlowSteps(self.cache, self.runner, self.chunk, perf_counter)
        if self.cache.paging.window is not None:
            self.cache.paging.window.pace = self._slow.lane
        self._slow_turns = SlowTurns(
            self.cache, self._slow, self._view, self.chunk, self._running, self._preempt, self._fail, perf_counter
        )
        self._standstill = Standstill(self.loading, self._slow_turns, self._running, self._fail)
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
        if len(self._waiting) >= self.options.max_waiting:
            raise QueueFull(len(self._waiting))
        request = Request(self._next_request, index, ids, sampling, priority, scope, limit, ended)
        request.retain, request.attend, request.listener = tuple(retain), attend, listener
        request.came = perf_counter()
        self._next_request += 1
        self._intake.add_branches(request, guide)
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
        request = self._requests.get(request_id)
        if request is None:
            return False
        if self._is_stepping:
            self._cancelled_meanwhile.append(request_id)
            return True
        for branch in request.branches:
            if branch.state is not BranchState.FINISHED:
                branch.tell(branch.event(None, self._finish(branch, FinishReason.CANCELLED)))
        if all(branch.state is BranchState.FINISHED for branch in self._slow.branches):
            self._slow.abandon()  # so that its pages go back now
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
            return self._run_step()
        finally:
            self._is_stepping = False
            while self._cancelled_meanwhile:
                self.cancel(self._cancelled_meanwhile.pop())

    def _run_step(self) -> list[TokenEvent]:
        begin = perf_counter()
        self.loading.collect()
        self.cache.retention.tick()
        running = self._view.running(self._running, self._slow.branches)
        queue, kept = queue_order(self._waiting.values()), num_kept(running)
        if self.loading.is_used:
            fast = [branch for branch in queue if not self._view.will_be_slow(branch, kept)]
            self.loading.advance(fast, self._view.num_spare(running), is_idle=not running)
        self.cache.let_pins_yield(False)
        decision = self._decide(running, queue)
        is_stuck = not (decision.does_anything or self._slow.branches or self.loading.num_loading)
        if is_stuck and self.has_work and self.cache.retention.num_pinned:
            self.cache.let_pins_yield(True)  # until the next pass
            decision = self._decide(running, queue)
        for key in decision.preempted:
            self._preempt(self._running[key])
        for admission in decision.admitted:
            self._admit(self._waiting[admission.key], admission)
        for branch in self._waiting.values():
            branch.waited += 1
        if self._slow_turns.begin([(self._running[key], count) for key, count in decision.slow.items()]):
            self._standstill.ended()
        self._counts.bookkeeping_seconds += perf_counter() - begin
        work = [(self._running[key], count) for key, count in decision.work.items()]
        if not (work or decision.admitted or self._slow.branches):
            if self.has_work:
                self._standstill.rest(queue, begin)
            return []
        self._standstill.ended()
        events: list[TokenEvent] = []
        begin = perf_counter()
        if work:
            self._counts.steps += 1
            pieces = [work] if self.chunk is None else [[item] for item in work]
            for piece in pieces:
                if self._has_room(piece):
                    events += self._compute(piece)
        done = self._slow.turn(perf_counter() - begin if work else None)
        return events if done is None else events + self._end_slow_step(done)

    def _decide(self, running: list[Running], queue: list[Branch]) -> Decision:
        waiting = self._view.waiting(queue, self.loading.turn, num_kept(running))
        limits = self.limits
        if limits.slow is not None and self.chunk is None:
            most = limits.slow.max_tokens
            alone, beside = min(most, self._slow.tokens_alone), min(most, self._slow.tokens_beside)
            limits = replace(limits, slow=replace(limits.slow, max_tokens=alone, max_tokens_beside=beside))
        return decide(limits, running, waiting, self.cache.num_available, self.loading.reserved)

    def _has_room(self, work: list[tuple[Branch, int]]) -> bool:
        """Whether the blocks that were counted on are there: between two steps of a pass, cached pages go down."""
        return self.chunk is None or not self.loading.is_used or self._view.has_room(work)

    def _fail(self, branch: Branch, error: str) -> None:
        """Ends a branch, and those that were to be forked from it."""
        for each in (branch, *branch.forks_to_come()):
            self._finish(each, FinishReason.ERROR, error)
            each.tell(each.event(None, ""))

    def _admit(self, branch: Branch, admission: Admission) -> None:
        del self._waiting[branch.key]
        branch.rank = effective_rank(branch.request.priority, branch.waited)
        branch.move(BranchState.RUNNING)
        if branch.request.started is None:
            branch.request.started = perf_counter()
        self._opening.open(branch, admission, self.loading.leave(branch))
        self._running[branch.key] = branch

    def _preempt(self, branch: Branch) -> None:
        seq = branch.running_sequence
        branch.lost = seq.length
        self.cache.retention.suspend(seq)
        seq.free()
        branch.earlier_faults = branch.faults
        branch.sequence, branch.keeps, branch.is_slow = None, None, False
        branch.stuck_since, branch.refusals = None, 0
        branch.preemptions += 1
        self._counts.preemptions += 1
        del self._running[branch.key]
        branch.move(BranchState.WAITING)
        self._waiting[branch.key] = branch

    def _compute(self, work: list[tuple[Branch, int]]) -> list[TokenEvent]:
        begin = perf_counter()
        piece = Piece.of(work)
        try:
            with self.cache.step_over(piece.sequences, piece.counts) as step:
                opened = perf_counter()
                logits = self.runner.forward(step.batch, piece.tokens, piece.logits_at)
                computed = perf_counter()
            closed = perf_counter()
            keep_scores(piece, logits)
            due = [piece.branches[i] for i in piece.due]
            chosen = self._sample(due, logits[: len(due)])
        except BaseException as error:
            for branch in piece.branches:
                self._fail(branch, f"the model failed: {error}")
            raise
        self._counts.bookkeeping_seconds += opened - begin + closed - computed
        self._counts.model_seconds += computed - opened
        self.loading.model.stepped(piece.num_prefill, piece.num_tokens - piece.num_prefill, computed - opened)
        events = self._take_all(due, chosen)
        self._counts.sampling_seconds += perf_counter() - closed
        return events

    def _take_all(self, due: list[Branch], chosen: list[Chosen]) -> list[TokenEvent]:
        for branch in due:
            self._fork_waiting(branch)
        events = [self._take(each) for each in chosen]
        for each, event in zip(chosen, events, strict=True):
            each.branch.tell(event)
        return events

    # -- the second lane ----------------------------------------------------------------------------------------

    def _end_slow_step(self, done: SlowStep) -> list[TokenEvent]:
        piece, error = done.piece, done.error
        self._slow_turns.num_ended += 1
        self._counts.model_seconds += done.seconds
        is_here = [b.sequence is seq for b, seq in zip(piece.branches, piece.sequences, strict=True)]
        if error is None:
            assert done.logits is not None
            rows = [row for row, at in enumerate(piece.due) if is_here[at]]
            due = [piece.branches[piece.due[row]] for row in rows]
            keep_scores(piece, done.logits, is_here)
            return self._take_all(due, self._sample(due, done.logits[rows]))
        if isinstance(error, Abandoned) or (isinstance(error, PagesLost) and self._slow_turns.recompute(error)):
            return []
        for branch in (each for each, here in zip(piece.branches, is_here, strict=True) if here):
            self._fail(branch, f"the model failed: {error}")
        raise error

    def _sample(self, due: list[Branch], logits: Tensor) -> list[Chosen]:
        """Every choice of a token comes through here."""
        return choose(due, logits)

    def _fork_waiting(self, branch: Branch) -> None:
        """The prompt is computed: the other choices go on from it."""
        for twin in branch.forks_to_come():
            twin.sequence = branch.running_sequence.fork()
            twin.rank = branch.rank
            twin.keeps, twin.is_slow, twin.was_slow = branch.keeps, branch.is_slow, branch.was_slow
            twin.prefix_by_tier = {TierKind.DEVICE: len(branch.request.prompt)}
            twin.move(BranchState.RUNNING)
            del self._forking[twin.key]
            self._running[twin.key] = twin

    def _take(self, chosen: Chosen) -> TokenEvent:
        branch = chosen.branch
        taken = take(branch, chosen.result)
        self._counts.generated_tokens += taken.sampled is not None
        text = taken.text
        if taken.ended is not None:
            text += self._finish(branch, taken.ended, taken.error)
        return branch.event(taken.sampled, text)

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
            branch.earlier_faults = branch.faults
            branch.sequence = None
        self._counts.faults += branch.faults
        for group in (self._running, self._waiting, self._forking):
            group.pop(branch.key, None)
        self.loading.leave(branch)
        branch.move(BranchState.FINISHED)
        request = branch.request
        if request.is_finished and self._requests.pop(request.id, None) is not None:
            self._counts.finished_requests += 1
            if self._recording is not None:
                self._recording.ended(request, branch.stop)

    # -- the engine as a whole ----------------------------------------------------------------------------------

    def branches(self) -> list[Branch]:
        """The running branches, the oldest first: for views."""
        return list(self._running.values())

    def waiting_branches(self) -> list[Branch]:
        """Those in the queue, as they came: for views."""
        return list(self._waiting.values())

    def statistics(self) -> EngineStatistics:
        return read_statistics(self)

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
        self._slow.close()
        self.cache.close()
        self._resources.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


__all__ = ["Completion", "Engine", "EngineStatistics", "FinishReason", "TokenEvent", "completion"]
