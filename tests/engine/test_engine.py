"""Requests through the engine: the tokens of plain generation, streams, forks, cancelling, limits, statistics."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvpager.config import DiskTier, HostTier, Options
from kvpager.engine import Completion, Engine, FinishReason, Sampling, TokenEvent
from kvpager.engine.preemption import PreemptionMode
from kvpager.engine.request import BranchState
from kvpager.errors import ConfigError, InvariantError, RequestError
from kvpager.prefix.hashing import Scope
from kvpager.types import TierKind
from tests.engine.engines import (
    Numbers,
    answers,
    ask,
    assert_idle,
    block_counts,
    checked_step,
    drive,
    first_choices,
    force_preemption,
    text_of,
    wrapped,
)
from tests.engine.tiers import drive as drive_passes
from tests.tiny_model import CONTEXT, VOCABULARY, ref, sharp_prompt, tiny_model

NEW = 16  # tokens of an answer here
GREEDY = Sampling(max_tokens=NEW)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = random.Random(1)
    return [sharp_prompt(generator, length, NEW) for length in (1, 5, 15, 16, 17, 40, 90, 150)]


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(tiny_model(), page_size=16, num_blocks=64, tokenizer=Numbers(), max_batch_tokens=64) as engine:
        yield engine
        assert_idle(engine)


# -- generate -----------------------------------------------------------------------------------------------------


def test_generate_gives_the_tokens_of_plain_generation_at_their_places(
    engine: Engine, prompts: list[list[int]]
) -> None:
    done = list(engine.generate(prompts, GREEDY))
    assert sorted(each.index for each in done) == list(range(len(prompts)))
    for each in done:
        assert list(each.token_ids) == ref(prompts[each.index], NEW)
        assert each.finish_reason is FinishReason.LENGTH
        assert each.prompt_tokens == len(prompts[each.index])
        assert each.text == text_of(each.token_ids)
        assert (each.choice, each.error) == (0, "")


def test_every_prompt_may_have_options_of_its_own(engine: Engine, prompts: list[list[int]]) -> None:
    own = [Sampling(max_tokens=1 + i) for i in range(len(prompts))]
    for each in engine.generate(prompts, own):
        assert list(each.token_ids) == ref(prompts[each.index], NEW)[: 1 + each.index]


def test_options_that_do_not_match_the_prompts_are_refused_before_anything_runs(
    engine: Engine, prompts: list[list[int]]
) -> None:
    with pytest.raises(ConfigError, match="8 prompts need as many sampling options, or one for all, not 2"):
        next(engine.generate(prompts, [GREEDY, GREEDY]))
    assert engine.statistics().steps == 0


def test_texts_go_through_the_tokenizer(engine: Engine, prompts: list[list[int]]) -> None:
    (done,) = engine.generate([text_of(prompts[3])], GREEDY)
    assert list(done.token_ids) == ref(prompts[3], NEW)


def test_a_model_without_tokenizer_takes_ids_only(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=16) as engine:
        with pytest.raises(ConfigError, match="no tokenizer"):
            engine.submit("1 2 3")
        with pytest.raises(RequestError, match="stop strings need a tokenizer"):
            engine.submit([1, 2, 3], Sampling(stop=("a",)))
        (done,) = engine.generate([prompts[3]], GREEDY)
        assert (list(done.token_ids), done.text) == (ref(prompts[3], NEW), "")


def test_a_list_with_one_impossible_prompt_is_refused_before_anything_runs(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64, max_waiting=2) as engine:
        for bad in ([], [VOCABULARY]):
            with pytest.raises(RequestError):
                next(engine.generate([*prompts, bad], GREEDY))
            assert engine.statistics().steps == 0
            assert_idle(engine)


def test_a_stream_with_an_impossible_prompt_runs_until_then_and_cancels_the_rest(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64, max_waiting=2) as engine:
        feed = iter([*prompts[:6], [], *prompts])
        done: list[Completion] = []
        with pytest.raises(RequestError, match="no tokens"):
            done.extend(engine.generate(feed, GREEDY))
        assert engine.statistics().steps > 0
        assert_idle(engine)
        assert answers(engine, prompts[:1], GREEDY) == [ref(prompts[0], NEW)]  # and works on


def test_more_prompts_than_may_wait_are_fed_as_the_queue_drains(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64, max_waiting=2, max_running=2) as engine:
        most = 0
        done = []
        for each in engine.generate((prompt for prompt in prompts * 2), GREEDY):
            most = max(most, engine.num_waiting)
            done.append(each)
        assert most <= 2
        assert sorted(each.index for each in done) == list(range(16))
        assert all(list(each.token_ids) == ref(prompts[each.index % 8], NEW) for each in done)


def test_generate_waits_for_the_requests_of_others_that_fill_the_queue(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64, max_waiting=1, max_running=1) as engine:
        ask(engine, prompts[3:4], GREEDY)
        checked_step(engine)
        other = ask(engine, prompts[4:5], GREEDY)[0]
        assert engine.num_waiting == engine.options.max_waiting
        (done,) = engine.generate([prompts[5]], GREEDY)
        assert list(done.token_ids) == ref(prompts[5], NEW)
        assert list(other.completions()[0].token_ids) == ref(prompts[4], NEW)


def test_generate_of_nothing_ends_at_once(engine: Engine) -> None:
    assert list(engine.generate([], GREEDY)) == []
    assert engine.step() == []


def test_leaving_generate_early_cancels_what_is_left(engine: Engine, prompts: list[list[int]]) -> None:
    own = [Sampling(max_tokens=2 if i == 4 else 200) for i in range(len(prompts))]
    iterator = engine.generate(prompts, own)
    assert next(iterator).index == 4
    assert engine.has_work
    iterator.close()
    assert_idle(engine)
    finished = engine.statistics().finished_requests
    assert finished == len(prompts)


def test_requests_may_be_cancelled_from_inside_the_iteration(engine: Engine, prompts: list[list[int]]) -> None:
    own = [Sampling(max_tokens=2 if i == 4 else NEW) for i in range(len(prompts))]
    reasons = {}
    for each in engine.generate(prompts, own):
        if each.index == 4:
            assert engine.cancel(each.request_id) is False  # it has finished
            assert engine.cancel(each.request_id + 1) is True
            engine.check()
        reasons[each.index] = each.finish_reason
        if each.index != 5:
            assert list(each.token_ids) == ref(prompts[each.index], NEW)[: len(each.token_ids)]
    assert reasons.pop(5) is FinishReason.CANCELLED
    assert set(reasons.values()) == {FinishReason.LENGTH}


def test_an_iteration_inside_an_iteration_runs_both(engine: Engine, prompts: list[list[int]]) -> None:
    outer = []
    inner = []
    for each in engine.generate(prompts[:4], [Sampling(max_tokens=4 * (i + 1)) for i in range(4)]):
        outer.append(list(each.token_ids) == ref(prompts[each.index], NEW))
        if each.index == 0:
            inner = list(engine.generate(prompts[4:6], GREEDY))
    assert len(outer) == 4
    assert [list(each.token_ids) for each in sorted(inner, key=lambda e: e.index)] == [
        ref(p, NEW) for p in prompts[4:6]
    ]


# -- stream -------------------------------------------------------------------------------------------------------


def test_a_stream_yields_each_token_and_says_at_the_last_why_it_ended(engine: Engine, prompts: list[list[int]]) -> None:
    events = list(engine.stream(prompts[5], GREEDY))
    assert [event.token for event in events] == ref(prompts[5], NEW)
    assert "".join(event.text for event in events) == text_of(ref(prompts[5], NEW))
    assert [event.finish_reason for event in events] == [None] * (NEW - 1) + [FinishReason.LENGTH]


def test_interleaved_streams_get_all_their_tokens(engine: Engine, prompts: list[list[int]]) -> None:
    """Each step of one stream computes tokens of the others too."""
    lengths = {3: NEW, 4: 5, 5: 11}
    streams = {i: engine.stream(prompts[i], Sampling(max_tokens=count)) for i, count in lengths.items()}
    got: dict[int, list[TokenEvent]] = defaultdict(list)
    while streams:
        for i, stream in list(streams.items()):
            event = next(stream, None)
            if event is None:
                del streams[i]
            else:
                got[i].append(event)
    for i, count in lengths.items():
        assert [event.token for event in got[i]] == ref(prompts[i], NEW)[:count]
        assert got[i][-1].finish_reason is FinishReason.LENGTH


def test_a_stream_runs_beside_queued_requests(engine: Engine, prompts: list[list[int]]) -> None:
    beside = ask(engine, prompts[:3], GREEDY)
    assert [event.token for event in engine.stream(prompts[5], GREEDY)] == ref(prompts[5], NEW)
    drive(engine)
    assert [list(done.token_ids) for done in first_choices(beside)] == [ref(prompt, NEW) for prompt in prompts[:3]]


def test_leaving_a_stream_early_cancels_it(engine: Engine, prompts: list[list[int]]) -> None:
    for event in engine.stream(prompts[5], Sampling(max_tokens=300)):
        if event.token == ref(prompts[5], NEW)[3]:
            break
    # the generator is collected here
    assert_idle(engine)


def test_a_stream_cancelled_from_outside_ends_with_an_event_that_says_so(
    engine: Engine, prompts: list[list[int]]
) -> None:
    events = []
    for event in engine.stream(prompts[5], Sampling(max_tokens=300, n=2)):
        events.append(event)
        if len(events) == 6:
            engine.cancel(event.request_id)
    assert {event.choice: event.finish_reason for event in events} == dict.fromkeys((0, 1), FinishReason.CANCELLED)
    assert [event.token for event in events if event.choice == 0 and event.token is not None] == ref(prompts[5], 3)


# -- choices ------------------------------------------------------------------------------------------------------


def test_all_choices_of_a_greedy_request_are_the_same(engine: Engine, prompts: list[list[int]]) -> None:
    done = list(engine.generate([prompts[5]], Sampling(max_tokens=NEW, n=4)))
    assert [each.choice for each in done] == [0, 1, 2, 3]
    assert all(list(each.token_ids) == ref(prompts[5], NEW) for each in done)


def test_choices_share_the_pages_of_the_prompt(engine: Engine, prompts: list[list[int]]) -> None:
    request = engine.submit(prompts[6], Sampling(max_tokens=3, n=8))  # 90 tokens: 5 whole pages and one begun
    while not request.branches[0].output:
        checked_step(engine)
    assert [branch.state for branch in request.branches] == [BranchState.RUNNING] * 8
    assert engine.cache.statistics().shared_blocks == 6
    assert block_counts(engine).used == 6
    checked_step(engine)  # each writes the begun page: seven copies
    assert engine.cache.statistics().shared_blocks == 5
    assert block_counts(engine).used == 5 + 8
    drive(engine)


def test_choices_beyond_what_may_run_together_are_refused(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64, max_running=4) as engine:
        with pytest.raises(RequestError, match="n=5 choices run together, but max_running is 4"):
            engine.submit(prompts[0], Sampling(n=5))
        assert len(list(engine.generate([prompts[0]], Sampling(n=4, max_tokens=2)))) == 4


def test_forks_to_come_count_as_running(prompts: list[list[int]]) -> None:
    """Two prompts that are computed over several steps, and become four branches each."""
    with Engine(tiny_model(), page_size=16, num_blocks=64, max_running=6, max_batch_tokens=32) as engine:
        requests = ask(engine, [prompts[6], prompts[7]], Sampling(max_tokens=NEW, n=4))
        drive(engine)  # checks max_running after every step
        for request, prompt in zip(requests, prompts[6:8], strict=True):
            assert [list(done.token_ids) for done in request.completions()] == [ref(prompt, NEW)] * 4


@pytest.mark.parametrize("n", [2, 5, 9])
def test_choices_in_a_pool_too_small_for_all_take_turns(n: int) -> None:
    prompt = sharp_prompt(random.Random(2), 60, 40)
    with Engine(tiny_model(), page_size=16, num_blocks=8) as engine:
        request = engine.submit(prompt, Sampling(max_tokens=40, n=n))
        drive(engine)
        assert [list(done.token_ids) for done in request.completions()] == [ref(prompt, 40)] * n
        assert n < 9 or engine.statistics().preemptions > 0  # fewer share all full pages: their texts are the same
        assert max(done.preemptions for done in request.completions()) <= 10
        assert_idle(engine)


# -- ends ---------------------------------------------------------------------------------------------------------


def test_a_stop_string_ends_the_answer_and_is_left_out(engine: Engine, prompts: list[list[int]]) -> None:
    tokens = ref(prompts[5], NEW)
    stop = text_of(tokens[4:6])
    (done,) = engine.generate([prompts[5]], Sampling(max_tokens=NEW, stop=("no such text", stop)))
    assert done.finish_reason is FinishReason.STOP
    assert list(done.token_ids) == tokens[:6]
    assert done.text == text_of(tokens[:4])


def test_text_held_back_for_a_stop_string_that_never_comes_is_given_out_at_the_end(
    engine: Engine, prompts: list[list[int]]
) -> None:
    tokens = ref(prompts[5], NEW)
    stop = text_of([tokens[-1]]) + "no"
    events = list(engine.stream(prompts[5], Sampling(max_tokens=NEW, stop=(stop,))))
    assert "".join(event.text for event in events) == text_of(tokens)
    assert events[-1].finish_reason is FinishReason.LENGTH


def test_a_stop_token_ends_the_answer_and_is_part_of_its_ids_only(engine: Engine, prompts: list[list[int]]) -> None:
    tokens = ref(prompts[5], NEW)
    (done,) = engine.generate([prompts[5]], Sampling(max_tokens=NEW, stop_token_ids=(tokens[4],)))
    assert done.finish_reason is FinishReason.STOP
    at = tokens.index(tokens[4])
    assert list(done.token_ids) == tokens[: at + 1]
    assert done.text == text_of(tokens[:at])


@pytest.mark.parametrize("as_list", [False, True])
def test_the_models_end_token_ends_the_answer_unless_it_is_ignored(prompts: list[list[int]], as_list: bool) -> None:
    tokens = ref(prompts[5], NEW)
    end = tokens.index(tokens[7])
    model = tiny_model()
    model.generation_config.eos_token_id = [3, tokens[7]] if as_list else tokens[7]
    with Engine(model, page_size=16, num_blocks=64) as engine:
        (done,) = engine.generate([prompts[5]], GREEDY)
        assert (list(done.token_ids), done.finish_reason) == (tokens[: end + 1], FinishReason.STOP)
        (done,) = engine.generate([prompts[5]], Sampling(max_tokens=NEW, ignore_eos=True))
        assert (list(done.token_ids), done.finish_reason) == (tokens, FinishReason.LENGTH)
        stop = Sampling(max_tokens=NEW, ignore_eos=True, stop_token_ids=(tokens[2],))
        (done,) = engine.generate([prompts[5]], stop)
        assert done.finish_reason is FinishReason.STOP


def test_an_answer_ends_where_the_pool_ends(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=3) as engine:
        prompt = prompts[5]  # 40 tokens; the pool holds 48, and the last token chosen needs no place
        (done,) = engine.generate([prompt], Sampling(max_tokens=100))
        assert done.finish_reason is FinishReason.LENGTH
        assert list(done.token_ids) == ref(prompt, 9)
        assert_idle(engine)


def test_an_answer_ends_where_the_models_context_ends() -> None:
    prompt = sharp_prompt(random.Random(3), CONTEXT - 4, 5)
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        (done,) = engine.generate([prompt], Sampling(max_tokens=100))
        assert (list(done.token_ids), done.finish_reason) == (ref(prompt, 5), FinishReason.LENGTH)


def test_max_context_limits_prompt_and_answer(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64, max_context=44) as engine:
        (done,) = engine.generate([prompts[5]], Sampling(max_tokens=100))
        assert (list(done.token_ids), done.finish_reason) == (ref(prompts[5], 5), FinishReason.LENGTH)
        with pytest.raises(RequestError, match="90 tokens, but at most 44 fit"):
            engine.submit(prompts[6])


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        ([], "no tokens"),
        ("", "no tokens"),
        ([1, VOCABULARY], r"token id 512 is not in the vocabulary \(0 to 511\)"),
        ([1, -1], "-1 is negative"),
        ([1, 2**31], "whole numbers"),
        ([1, 2.5], "whole numbers"),
        ([1, None], "whole numbers"),
        ([[1], [2]], "whole numbers"),
        ([5] * (CONTEXT + 1), r"513 tokens, but at most 512 fit \(model context 512, pool 64 blocks of 16 tokens"),
    ],
    ids=["empty", "empty text", "vocabulary", "negative", "huge", "fraction", "none", "nested", "too long"],
)
def test_a_prompt_that_can_never_run_is_refused_and_nothing_changes(
    engine: Engine, prompt: object, complaint: str
) -> None:
    before = engine.statistics()
    with pytest.raises(RequestError, match=complaint):
        engine.submit(prompt)  # type: ignore[arg-type]
    assert engine.statistics() == before
    assert not engine.has_work


def test_a_prompt_longer_than_the_pool_is_refused_with_both_numbers() -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=4) as engine:
        with pytest.raises(RequestError, match=r"65 tokens, but at most 64 fit .*pool 4 blocks of 16 tokens"):
            engine.submit([1] * 65)
        (done,) = engine.generate([[1] * 64], Sampling(max_tokens=5))
        assert len(done.token_ids) == 1


@pytest.mark.parametrize(
    "sampling", [Sampling(stop_token_ids=(VOCABULARY,)), Sampling(logit_bias={VOCABULARY: 1.0})], ids=["stop", "bias"]
)
def test_options_that_name_tokens_outside_the_vocabulary_are_refused(engine: Engine, sampling: Sampling) -> None:
    with pytest.raises(RequestError, match="names token 512"):
        engine.submit([1, 2], sampling)
    assert not engine.has_work


def test_a_full_queue_refuses_and_takes_requests_again_when_it_has_drained(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64, max_waiting=2, max_running=1) as engine:
        first = ask(engine, prompts[:2], GREEDY)
        with pytest.raises(RequestError, match="the queue is full: 2 requests are waiting; retry later"):
            engine.submit(prompts[2], GREEDY)
        drive(engine)
        assert [list(done.token_ids) for done in first_choices(first)] == [ref(prompt, NEW) for prompt in prompts[:2]]
        assert answers(engine, prompts[2:3], GREEDY) == [ref(prompts[2], NEW)]


# -- cancelling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 10])
@pytest.mark.parametrize("n", [1, 3])
def test_a_cancelled_request_gives_everything_back_at_once(
    engine: Engine, prompts: list[list[int]], steps: int, n: int
) -> None:
    """After no step it waits, after one or two it computes its prompt of 150 tokens, later it decodes."""
    beside = engine.submit(prompts[5], GREEDY)
    request = engine.submit(prompts[7], Sampling(max_tokens=100, n=n))
    for _ in range(steps):
        checked_step(engine)
    assert engine.cancel(request.id) is True
    engine.check()
    assert request.is_finished
    assert {done.finish_reason for done in request.completions()} == {FinishReason.CANCELLED}
    assert request.id not in {branch.request.id for branch in engine.branches()}
    assert engine.cancel(request.id) is False
    assert all(len(done.token_ids) == len(done.text.split()) for done in request.completions())
    drive(engine)
    assert list(beside.completions()[0].token_ids) == ref(prompts[5], NEW)


def test_a_preempted_request_can_be_cancelled(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=14) as engine:
        requests = ask(engine, [prompts[6], prompts[6][::-1]], Sampling(max_tokens=40))
        while not engine.statistics().preemptions:
            checked_step(engine)
        assert requests[1].branches[0].state is BranchState.WAITING
        assert engine.cancel(requests[1].id)
        drive(engine)
        done = requests[1].completions()[0]
        assert (done.finish_reason, done.preemptions) == (FinishReason.CANCELLED, 1)
        assert len(done.token_ids) > 0
        assert len(requests[0].completions()[0].token_ids) == 40
        assert_idle(engine)


def test_a_request_cancelled_inside_a_step_ends_when_the_step_has_ended(
    engine: Engine, prompts: list[list[int]]
) -> None:
    """Its blocks belong to the step until then. An iterator may be garbage-collected at any moment, also then."""
    requests = ask(engine, prompts[4:7], Sampling(max_tokens=NEW, n=2))
    streams = [engine.stream(prompts[3], GREEDY)]
    next(streams[0])

    def forward(original: Callable[..., Any], *args: Any) -> Any:
        used = block_counts(engine).used
        assert engine.cancel(requests[1].id) is True
        streams.clear()  # closes the generator
        with pytest.raises(ConfigError, match="inside a step"):
            engine.step()
        assert block_counts(engine).used == used
        return original(*args)

    with wrapped(engine.runner, "forward", forward):
        engine.step()
    engine.check()
    assert {done.finish_reason for done in requests[1].completions()} == {FinishReason.CANCELLED}
    assert {branch.request.id for branch in engine.branches()} <= {requests[0].id, requests[2].id}
    drive(engine)
    for request, prompt in ((requests[0], prompts[4]), (requests[2], prompts[6])):
        assert [list(done.token_ids) for done in request.completions()] == [ref(prompt, NEW)] * 2


def test_cancelling_an_unknown_request_changes_nothing(engine: Engine) -> None:
    assert engine.cancel(12345) is False


# -- order --------------------------------------------------------------------------------------------------------


def test_the_higher_priority_starts_first(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64, max_running=1) as engine:
        order: list[int] = []
        for number, priority in enumerate((0, 0, 3, -1, 3)):
            engine.submit(prompts[number], Sampling(max_tokens=3), priority=priority, index=number)
        while engine.has_work:
            for event in checked_step(engine):
                if event.finish_reason is not None:
                    order.append(event.request_id)
        assert order == [2, 4, 0, 1, 3]


def test_the_lower_priority_is_the_one_that_is_preempted() -> None:
    generator = random.Random(4)
    prompts = [sharp_prompt(generator, 60, 60) for _ in range(2)]
    with Engine(tiny_model(), page_size=16, num_blocks=10) as engine:
        low = engine.submit(prompts[0], Sampling(max_tokens=60), priority=0)
        high = engine.submit(prompts[1], Sampling(max_tokens=60), priority=1)
        assert high.started is None
        drive(engine)
        assert low.started is not None
        assert high.started is not None
        assert low.came < high.came < high.started < low.started  # of the first time, not after it was preempted
        assert low.completions()[0].preemptions > 0
        assert high.completions()[0].preemptions == 0
        for request, prompt in zip((low, high), prompts, strict=True):
            assert list(request.completions()[0].token_ids) == ref(prompt, 60)


# -- reuse --------------------------------------------------------------------------------------------------------


def test_requests_reuse_common_prefixes_only_in_their_scope(engine: Engine, prompts: list[list[int]]) -> None:
    found = {}
    for name, scope in (("cold", Scope()), ("warm", Scope()), ("salt", Scope(salt="x")), ("salted", Scope(salt="x"))):
        (done,) = engine.generate([prompts[7]], GREEDY, scope=scope)
        found[name] = done.prefix_tokens
        assert list(done.token_ids) == ref(prompts[7], NEW)
    assert found == {"cold": 0, "warm": 149, "salt": 0, "salted": 149}
    assert [event.token for event in engine.stream(prompts[7], GREEDY, scope=Scope(salt="y"))] == ref(prompts[7], NEW)


def test_without_the_prefix_cache_nothing_is_reused(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64, prefix_cache=False) as engine:
        for _ in range(2):
            (done,) = engine.generate([prompts[7]], GREEDY)
            assert (list(done.token_ids), done.prefix_tokens) == (ref(prompts[7], NEW), 0)
        assert block_counts(engine).free == 64


@pytest.mark.parametrize("last", [0, 8])
def test_a_hit_inside_the_last_page_of_a_full_pool_does_not_break_the_step(last: int) -> None:
    """The page that is copied on write would be the ninth of eight."""
    prompt = sharp_prompt(random.Random(5), 128, 1)
    other = [*prompt[: 128 - last], *range(last)]
    with Engine(tiny_model(), page_size=16, num_blocks=8) as engine:
        assert answers(engine, [prompt], Sampling(max_tokens=1)) == [ref(prompt, 1)]
        assert answers(engine, [other], Sampling(max_tokens=1)) == [ref(other, 1)]
        assert engine.statistics().prefix_tokens == 112
        assert_idle(engine)


# -- statistics ---------------------------------------------------------------------------------------------------


def test_the_statistics_add_up_over_finished_requests() -> None:
    """I28: prompt tokens = computed + hits, the sum over the requests is the counter, and counters never go down."""
    generator = random.Random(6)
    common = [generator.randrange(VOCABULARY) for _ in range(50)]
    with Engine(tiny_model(), page_size=16, num_blocks=40, max_batch_tokens=48) as engine:
        requests = []
        for number in range(12):
            prompt = [*common, *(generator.randrange(VOCABULARY) for _ in range(20))]
            requests.append(engine.submit(prompt, Sampling(max_tokens=10, n=1 + number % 3)))
            if number % 4 == 3:
                drive(engine)
        statistics, cache = engine.statistics(), engine.cache.statistics()
        firsts = first_choices(requests)
        assert statistics.finished_requests == len(requests)
        assert statistics.prompt_tokens == sum(done.prompt_tokens for done in firsts) == 12 * 70
        assert statistics.prefix_tokens == sum(done.prefix_tokens for done in firsts) >= 8 * 48
        every = [done for request in requests for done in request.completions()]
        assert statistics.generated_tokens == sum(len(done.token_ids) for done in every) == 10 * 24
        assert statistics.preemptions == sum(done.preemptions for done in every) == 0
        # All that was computed: the prompts but for the hits, and each answer but for its last token.
        assert cache.computed_tokens == statistics.prompt_tokens - statistics.prefix_tokens + 9 * 24
        assert cache.prefix.hit_tokens == statistics.prefix_tokens
        assert cache.prefix.prompt_tokens == statistics.prompt_tokens
        assert statistics.model_seconds > 0
        assert statistics.bookkeeping_seconds > 0
        assert statistics.sampling_seconds > 0
        assert_idle(engine)


def test_requests_that_never_started_count_no_prompt_tokens(engine: Engine, prompts: list[list[int]]) -> None:
    request = engine.submit(prompts[7], GREEDY)
    assert engine.statistics().prompt_tokens == 0
    engine.cancel(request.id)
    statistics = engine.statistics()
    assert (statistics.running, statistics.waiting, statistics.finished_requests, statistics.steps) == (0, 0, 1, 0)
    assert (statistics.prompt_tokens, statistics.prefix_tokens, statistics.generated_tokens) == (0, 0, 0)


def test_a_request_counts_its_prompt_once_however_often_it_is_preempted() -> None:
    generator = random.Random(7)
    prompts = [sharp_prompt(generator, 60, 60) for _ in range(3)]
    with Engine(tiny_model(), page_size=16, num_blocks=10) as engine:
        requests = ask(engine, prompts, Sampling(max_tokens=60))
        drive(engine)
        statistics = engine.statistics()
        assert statistics.preemptions == sum(done.preemptions for done in first_choices(requests)) > 0
        assert (statistics.prompt_tokens, statistics.generated_tokens) == (180, 180)
        assert [list(done.token_ids) for done in first_choices(requests)] == [ref(prompt, 60) for prompt in prompts]
        assert_idle(engine)


def test_what_waits_and_runs_is_counted(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64, max_running=3) as engine:
        ask(engine, [prompts[0], prompts[1]], Sampling(max_tokens=NEW, n=2))
        assert (engine.statistics().running, engine.statistics().waiting, engine.num_waiting) == (0, 4, 2)
        checked_step(engine)
        assert (engine.statistics().running, engine.statistics().waiting, engine.num_waiting) == (2, 2, 1)
        assert len(engine.branches()) == 2


# -- check --------------------------------------------------------------------------------------------------------


def test_check_finds_books_that_do_not_agree(engine: Engine, prompts: list[list[int]]) -> None:
    request = engine.submit(prompts[5], GREEDY)
    checked_step(engine)
    branch = request.branches[0]
    token = branch.output.pop()
    with pytest.raises(InvariantError, match="know different tokens"):
        engine.check()
    branch.output.append(token)
    del engine._queues.requests[request.id]
    with pytest.raises(InvariantError, match="its request is gone"):
        engine.check()
    engine._queues.requests[request.id] = request
    del engine._queues.running[branch.key]
    with pytest.raises(InvariantError, match="no running branch"):
        engine.check()
    engine._queues.running[branch.key] = branch
    branch.state = BranchState.WAITING
    with pytest.raises(InvariantError, match="queued as running"):
        engine.check()
    branch.state = BranchState.RUNNING
    engine.check()
    engine.cancel(request.id)


# -- options ------------------------------------------------------------------------------------------------------


def test_an_engine_takes_an_options_object_or_keywords_but_not_both(prompts: list[list[int]]) -> None:
    options = Options(max_running=2, page_size=8)
    with Engine(tiny_model(), options=options, num_blocks=64) as engine:
        assert engine.options is options
        assert engine.layout.page_size == 8
        assert answers(engine, prompts[:4], GREEDY) == [ref(prompt, NEW) for prompt in prompts[:4]]
    with pytest.raises(ConfigError, match="either options or keywords"):
        Engine(tiny_model(), options=options, max_running=3)
    with pytest.raises(ConfigError, match="max_runing"):
        Engine(tiny_model(), max_runing=3)


@pytest.mark.parametrize("page_size", [1, 5, 16, 64])
@pytest.mark.parametrize("max_batch_tokens", [1, 7, 512])
def test_tokens_do_not_depend_on_page_size_or_chunk(
    prompts: list[list[int]], page_size: int, max_batch_tokens: int
) -> None:
    options = {"page_size": page_size, "max_batch_tokens": max_batch_tokens}
    with Engine(tiny_model(), num_blocks=1000 // page_size, **options) as engine:
        short = Sampling(max_tokens=6)
        assert answers(engine, prompts, short) == [ref(prompt, NEW)[:6] for prompt in prompts]


def test_an_engine_that_can_not_open_leaves_its_cache_folder_to_others(tmp_path: Path) -> None:
    model, tiers = tiny_model(), [DiskTier(tmp_path / "kv", "8MiB")]
    with Engine(model, num_blocks=16), pytest.raises(ConfigError, match="in use by another engine"):
        Engine(model, num_blocks=16, tiers=tiers)
    with Engine(model, num_blocks=16, tiers=tiers):
        pass


@pytest.mark.parametrize(
    ("length", "has_tier", "mode"),
    [(5, True, PreemptionMode.RECOMPUTE), (40, False, PreemptionMode.KEEP), (40, True, PreemptionMode.SWAP)],
)
def test_preemptions_are_counted_by_what_becomes_of_the_pages(
    length: int, has_tier: bool, mode: PreemptionMode
) -> None:
    tiers = (HostTier(pages=16),) if has_tier else ()
    with Engine(tiny_model(), options=Options(page_size=16, tiers=tiers), num_blocks=16) as engine:
        engine.submit(list(range(2, 2 + length)), GREEDY)
        drive_passes(engine, lambda number: number == 3 and force_preemption(engine))
        found = engine.statistics()
        assert found.preemptions_by_mode == {mode: 1}
        assert found.preemptions == 1
        assert sum(found.resumptions.by_tier.values()) == 1
        assert (found.resumptions.by_tier.keys() == {TierKind.NONE}) == (mode is PreemptionMode.RECOMPUTE)
