"""One step of an engine: decide who runs, compute them, choose their tokens.

    loads that came -> decide() -> preempt, admit -> cache.step -> model -> choose -> events
                          ^                              |
                          +-- nothing has changed: again-+

It carries out what engine/scheduler.py decides of what engine/scheduler_view.py shows, once engine/loading.py has
brought up what lower tiers have; engine/queues.py moves the branches. Requests whose pages do not fit on the device are
computed in the second lane (engine/slow_turns.py), whose step alone may be open between two of these.

Knows no client: who submits, cancels and listens is engine/engine.py's affair.
"""

from collections.abc import Sequence as List
from dataclasses import replace
from time import perf_counter

from torch import Tensor

from kvpager.engine.block_needs import Limits
from kvpager.engine.choosing import Chosen, choose, keep_scores
from kvpager.engine.loading import Loading
from kvpager.engine.output import take
from kvpager.engine.piece import Piece
from kvpager.engine.queues import Queues
from kvpager.engine.request import Branch, BranchState, TokenEvent
from kvpager.engine.same_again import SameAgain
from kvpager.engine.sampling import SampledToken
from kvpager.engine.scheduler import Decision, Running, decide, num_kept
from kvpager.engine.scheduler_view import SchedulerView, queue_order
from kvpager.engine.setup import EngineParts
from kvpager.engine.slow_lane import Abandoned
from kvpager.engine.slow_steps import SlowStep, SlowSteps
from kvpager.engine.slow_turns import SlowTurns
from kvpager.engine.standstill import Standstill
from kvpager.engine.statistics import WorkCounts
from kvpager.errors import PagesLost


class StepLoop:
    """``slow``: the second lane. ``turns``: whose turn it is there. ``limits``: of every decision."""

    def __init__(
        self, parts: EngineParts, queues: Queues, view: SchedulerView, loading: Loading, counts: WorkCounts
    ) -> None:
        self._cache, self._runner = parts.cache, parts.runner
        self.limits: Limits = parts.limits
        self._chunk = parts.limits.chunk
        self._queues = queues
        self._view = view
        self._loading = loading
        self._counts = counts
        self.slow = SlowSteps(self._cache, self._runner, self._chunk, perf_counter)
        if self._cache.paging.window is not None:
            self._cache.paging.window.pace = self.slow.lane
        self.turns = SlowTurns(
            self._cache, self.slow, view, self._chunk, queues.running, queues.preempt, queues.fail, perf_counter
        )
        self._same = SameAgain(self._cache, self.limits)
        self._standstill = Standstill(loading, self.turns, queues.running, queues.fail)

    def step(self) -> list[TokenEvent]:
        """The tokens of one step. If the model raises, the branches that were being computed end with an error."""
        begin, cache, queues = perf_counter(), self._cache, self._queues
        self._loading.collect()
        cache.retention.tick()
        cache.let_pins_yield(False)
        again = self._again()
        if again is not None:
            self._counts.bookkeeping_seconds += perf_counter() - begin
            self._counts.steps += 1
            return self._compute(again)
        running = self._view.running(queues.running, self.slow.branches)
        queue, kept = queue_order(queues.waiting.values()), num_kept(running)
        if self._loading.is_used:
            fast = [branch for branch in queue if not self._view.will_be_slow(branch, kept)]
            self._loading.advance(fast, self._view.num_spare(running), is_idle=not running)
        decision = self._decide(running, queue)
        is_stuck = not (decision.does_anything or self.slow.branches or self._loading.num_loading)
        if is_stuck and queues.has_work and cache.retention.num_pinned:
            cache.let_pins_yield(True)  # until the next pass
            decision = self._decide(running, queue)
        self._carry_out(decision)
        self._counts.bookkeeping_seconds += perf_counter() - begin
        work = [(queues.running[key], count) for key, count in decision.work.items()]
        if not (work or decision.admitted or self.slow.branches):
            if queues.has_work:
                self._standstill.rest(queue, begin)
            return []
        self._standstill.ended()
        return self._compute_all(work)

    def drop_ended(self) -> None:
        """The second lane's step goes where all its branches have ended, so that their pages are free now."""
        if all(branch.state is BranchState.FINISHED for branch in self.slow.branches):
            self.slow.abandon()

    def close(self) -> None:
        self.slow.close()

    # -- deciding -----------------------------------------------------------------------------------------------

    def _again(self) -> Piece | None:
        """What is computed in a pass that needs no decision, since nobody can start and all others decode on."""
        queues = self._queues
        can_start = queues.waiting and (self._loading.is_used or len(queues.running) < self.limits.max_running)
        if can_start or self.slow.branches or not self._loading.is_idle:
            return None
        piece = self._same.piece(queues.running)
        if piece is not None:
            self._standstill.ended()
            for branch in queues.waiting.values():
                branch.waited += 1
        return piece

    def _decide(self, running: list[Running], queue: list[Branch]) -> Decision:
        waiting = self._view.waiting(queue, self._loading.turn, num_kept(running))
        limits = self.limits
        if limits.slow is not None and self._chunk is None:
            most = limits.slow.max_tokens
            alone, beside = min(most, self.slow.tokens_alone), min(most, self.slow.tokens_beside)
            limits = replace(limits, slow=replace(limits.slow, max_tokens=alone, max_tokens_beside=beside))
        return decide(limits, running, waiting, self._cache.num_available, self._loading.reserved)

    def _carry_out(self, decision: Decision) -> None:
        """All of it but the work of the ordinary lane."""
        queues = self._queues
        for key in decision.preempted:
            queues.preempt(queues.running[key])
        for admission in decision.admitted:
            queues.admit(queues.waiting[admission.key], admission)
        for branch in queues.waiting.values():
            branch.waited += 1
        if self.turns.begin([(queues.running[key], count) for key, count in decision.slow.items()]):
            self._standstill.ended()

    # -- computing ----------------------------------------------------------------------------------------------

    def _compute_all(self, work: list[tuple[Branch, int]]) -> list[TokenEvent]:
        """The work of the ordinary lane, and then a turn of the second one."""
        events: list[TokenEvent] = []
        begin = perf_counter()
        if work:
            self._counts.steps += 1
            pieces = [work] if self._chunk is None else [[item] for item in work]
            for piece in pieces:
                if self._has_room(piece):
                    events += self._compute(Piece.of(piece))
        done = self.slow.turn(perf_counter() - begin if work else None)
        return events if done is None else events + self._end_slow_step(done)

    def _has_room(self, work: list[tuple[Branch, int]]) -> bool:
        """Whether the blocks that were counted on are there: between two steps of a pass, cached pages go down."""
        return self._chunk is None or not self._loading.is_used or self._view.has_room(work)

    def _compute(self, piece: Piece) -> list[TokenEvent]:
        begin = perf_counter()
        try:
            with self._cache.step_over(piece.sequences, piece.counts) as step:
                opened = perf_counter()
                logits = self._runner.forward(step.batch, piece.tokens, piece.logits_at)
                computed = perf_counter()
            closed = perf_counter()
            keep_scores(piece, logits)
            due = [piece.branches[i] for i in piece.due]
            chosen = self._sample(due, logits[: len(due)])
        except BaseException as error:
            for branch in piece.branches:
                self._queues.fail(branch, f"the model failed: {error}")
            raise
        self._counts.bookkeeping_seconds += opened - begin + closed - computed
        self._counts.model_seconds += computed - opened
        self._loading.model.stepped(piece.num_prefill, piece.num_tokens - piece.num_prefill, computed - opened)
        events = self._take_all(due, chosen)
        self._same.computed(piece)
        self._counts.sampling_seconds += perf_counter() - closed
        return events

    def _end_slow_step(self, done: SlowStep) -> list[TokenEvent]:
        piece, error = done.piece, done.error
        self.turns.num_ended += 1
        self._counts.model_seconds += done.seconds
        is_here = [b.sequence is seq for b, seq in zip(piece.branches, piece.sequences, strict=True)]
        if error is None:
            assert done.logits is not None
            rows = [row for row, at in enumerate(piece.due) if is_here[at]]
            due = [piece.branches[piece.due[row]] for row in rows]
            keep_scores(piece, done.logits, is_here)
            return self._take_all(due, self._sample(due, done.logits[rows]))
        if isinstance(error, Abandoned) or (isinstance(error, PagesLost) and self.turns.recompute(error)):
            return []
        for branch in (each for each, here in zip(piece.branches, is_here, strict=True) if here):
            self._queues.fail(branch, f"the model failed: {error}")
        raise error

    # -- tokens -------------------------------------------------------------------------------------------------

    def _sample(self, due: List[Branch], logits: Tensor) -> list[Chosen]:
        """Every choice of a token comes through here."""
        return choose(due, logits)

    def _take_all(self, due: list[Branch], chosen: list[Chosen]) -> list[TokenEvent]:
        for branch in due:
            self._queues.fork(branch)
        events = [self._take(each) for each in chosen]
        for each, event in zip(chosen, events, strict=True):
            each.branch.tell(event)
        return events

    def _take(self, chosen: Chosen) -> TokenEvent:
        branch, result = chosen.branch, chosen.result
        sampled = result if isinstance(result, SampledToken) else None
        taken = take(branch, result)
        self._counts.generated_tokens += sampled is not None
        text = taken.text
        if taken.ended is not None:
            text += self._queues.finish(branch, taken.ended, taken.error)
        return branch.event(sampled, text)
