"""When something breaks: the model, a row of logits, a tokenizer, the set-up. What belongs to others goes on."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kvpager.engine import Engine, FinishReason, Sampling, choosing
from kvpager.engine import setup as assembly
from kvpager.errors import ConfigError, UnsupportedModel
from kvpager.integrations.attention_function import NAME
from tests.engine.engines import Numbers, answers, ask, assert_idle, checked_step, drive, first_choices, wrapped
from tests.tiny_model import ref, sharp_prompt, tiny_model

NEW = 12
GREEDY = Sampling(max_tokens=NEW)


class Broken(RuntimeError):
    pass


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = random.Random(21)
    return [sharp_prompt(generator, length, NEW) for length in (5, 17, 40, 90)]


@pytest.fixture(params=[False, True], ids=["default", "deterministic"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine(tiny_model(), page_size=16, num_blocks=64, max_batch_tokens=64, deterministic=request.param) as engine:
        yield engine
        assert_idle(engine)


def fails_at(call: int) -> Callable[..., Any]:
    """A wrapper that raises at its n-th call."""
    calls = [0]

    def wrapper(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise Broken(f"call {call}")
        return original(*args, **kwargs)

    return wrapper


# -- the model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("n", [1, 3])
def test_a_model_that_raises_ends_the_requests_of_that_step_and_no_others(
    engine: Engine, prompts: list[list[int]], call: int, n: int
) -> None:
    requests = ask(engine, prompts, Sampling(max_tokens=NEW, n=n))
    with wrapped(engine.runner, "forward", fails_at(call)), pytest.raises(Broken):
        drive(engine)
    engine.check()
    failed = [each for r in requests for each in r.branches if each.finish_reason is FinishReason.ERROR]
    assert {each.error for each in failed} == {f"the model failed: call {call}"}
    drive(engine)
    for request, prompt in zip(requests, prompts, strict=True):
        for done in request.completions():
            if done.finish_reason is not FinishReason.ERROR:
                assert list(done.token_ids) == ref(prompt, NEW)
    assert engine.statistics().finished_requests == len(requests)
    assert_idle(engine)
    assert answers(engine, prompts, GREEDY) == [ref(prompt, NEW) for prompt in prompts]  # nothing wrong was published


def test_generate_passes_the_models_error_on_and_leaves_nothing_behind(
    engine: Engine, prompts: list[list[int]]
) -> None:
    with wrapped(engine.runner, "forward", fails_at(4)), pytest.raises(Broken):
        list(engine.generate(prompts, GREEDY))
    assert_idle(engine)


def test_a_stream_whose_request_failed_in_anothers_step_ends_with_an_error(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        first, second = (engine.stream(prompt, GREEDY) for prompt in prompts[:2])
        got = [next(first), next(second)]
        with wrapped(engine.runner, "forward", fails_at(1)), pytest.raises(Broken):
            list(first)
        got = list(second)
        assert got[-1].finish_reason is FinishReason.ERROR
        assert_idle(engine)


def test_out_of_memory_in_the_middle_of_a_layer_publishes_nothing(prompts: list[list[int]]) -> None:
    """The K and V of the first layers are in the pool already when the last one raises."""
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        last = engine.model.model.layers[-1].mlp
        ask(engine, [prompts[3]], GREEDY)
        with wrapped(last, "forward", fails_at(1)), pytest.raises(Broken):
            engine.step()
        assert_idle(engine)
        assert engine.cache.statistics().published_blocks == 0
        assert answers(engine, [prompts[3]], GREEDY) == [ref(prompts[3], NEW)]
        assert engine.statistics().prefix_tokens == 0


# -- a row of logits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_without_a_distribution_fails_its_request_only(
    engine: Engine, prompts: list[list[int]], value: float
) -> None:
    requests = ask(engine, prompts, Sampling(max_tokens=NEW, n=2))
    victim = requests[1].branches[0]

    def spoil(original: Callable[..., Any], branches: list[Any], logits: torch.Tensor) -> Any:
        if victim in branches and len(victim.output) == 3:
            logits = logits.clone()
            logits[branches.index(victim), 5] = value
        return original(branches, logits)

    with wrapped(engine._loop, "_sample", spoil):
        drive(engine)
    for request, prompt in zip(requests, prompts, strict=True):
        for done in request.completions():
            if request is requests[1] and done.choice == 0:
                assert done.finish_reason is FinishReason.ERROR
                assert "logits" in done.error
                assert list(done.token_ids) == ref(prompt, NEW)[:3]
            else:
                assert list(done.token_ids) == ref(prompt, NEW)


def test_a_stream_with_a_damaged_row_ends_with_an_error_event(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:

        def spoil(original: Callable[..., Any], branches: list[Any], logits: torch.Tensor) -> Any:
            return original(branches, logits * torch.nan)

        with wrapped(engine._loop, "_sample", spoil):
            events = list(engine.stream(prompts[0], Sampling(max_tokens=NEW, n=2)))
        assert [(event.choice, event.token, event.finish_reason) for event in events] == [
            (0, None, FinishReason.ERROR),
            (1, None, FinishReason.ERROR),
        ]
        assert_idle(engine)


# -- sampling and text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
def test_a_sampler_that_raises_leaves_no_branch_behind(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, prompts: list[list[int]], n: int
) -> None:
    original, fail = choosing.sample, fails_at(1)
    requests = ask(engine, prompts, Sampling(max_tokens=NEW, n=n))
    monkeypatch.setattr(choosing, "sample", lambda *args: fail(original, *args))
    with pytest.raises(Broken):
        drive(engine)
    engine.check()
    drive(engine)  # ends: nobody waits for a token that was never chosen
    assert all(request.is_finished for request in requests)


def test_a_token_that_the_tokenizer_does_not_know_fails_its_request_only(prompts: list[list[int]]) -> None:
    """Models may have more logits than their tokenizers have tokens."""
    known = 500
    within = Sampling(max_tokens=NEW, logit_bias=dict.fromkeys(range(known, 512), -100.0))
    beyond = Sampling(max_tokens=NEW, logit_bias={505: 100.0}, n=2)
    with Engine(tiny_model(), page_size=16, num_blocks=64, tokenizer=Numbers(known)) as engine:
        good, bad = ask(engine, [prompts[1], prompts[2]], [within, beyond])
        drive(engine)
        assert good.completions()[0].finish_reason is FinishReason.LENGTH
        for done in bad.completions():
            assert done.finish_reason is FinishReason.ERROR
            assert "the tokenizer can't decode token 505: piece id 505 is out of range" in done.error
        assert_idle(engine)


# -- the set-up ---------------------------------------------------------------------------------------------------


def attention_of(model: Any) -> str:
    name: str = model.config._attn_implementation
    return name


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 0},
        {"num_blocks": -1},
        {"num_blocks": 1, "deterministic": True},
        {"capacity": "1B"},
        {"capacity": "nonsense"},
        {"page_size": "1B", "num_blocks": 4},
        {"eviction": "no-such-policy", "num_blocks": 4},
        {"attention": "no-such-backend", "num_blocks": 4},
        {"kv_dtype": "bfloat16", "num_blocks": 4},
        {"deterministic": True, "max_batch_tokens": 63, "num_blocks": 64},
        {"eviction_threshold": 0.7, "num_blocks": 4},
    ],
    ids=str,
)
def test_an_engine_that_can_not_open_leaves_the_model_as_it_was(
    options: dict[str, Any], prompts: list[list[int]]
) -> None:
    model = tiny_model().train()
    before = attention_of(model)
    with pytest.raises(ConfigError):
        Engine(model, **options)
    assert attention_of(model) == before != NAME
    assert model.training
    with Engine(model, page_size=16, num_blocks=64) as engine:  # and can be used by the next
        assert answers(engine, prompts[:1], GREEDY) == [ref(prompts[0], NEW)]


@pytest.mark.parametrize("owner", ["open_cache", "ModelRunner", "select", "tokens_that_fit"])
def test_a_failure_at_any_point_of_the_set_up_leaves_the_model_as_it_was(
    monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    model = tiny_model()
    before = attention_of(model)

    def fail(*_: object, **__: object) -> None:
        raise Broken(owner)

    monkeypatch.setattr(assembly, owner, fail)
    with pytest.raises(Broken):
        Engine(model, page_size=16, num_blocks=64)
    assert attention_of(model) == before


def test_a_failure_while_the_attention_is_replaced_restores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model().train()
    before = attention_of(model)
    with wrapped(model, "set_attn_implementation", fails_at(1)), pytest.raises(Broken):
        Engine(model, page_size=16, num_blocks=64)
    assert attention_of(model) == before
    assert model.training


def test_a_model_whose_attention_is_not_computed_here_is_refused_untouched() -> None:
    model = tiny_model()
    model.config.model_type = "bloom"
    before = attention_of(model)
    with pytest.raises(UnsupportedModel, match="bloom"):
        Engine(model, page_size=16, num_blocks=64)
    assert attention_of(model) == before


# -- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_closing_restores_the_models_attention_and_mode(
    prompts: list[list[int]], attention: str, training: bool
) -> None:
    model = tiny_model()
    model.set_attn_implementation(attention)
    model.train(training)
    with Engine(model, page_size=16, num_blocks=64) as engine:
        assert attention_of(model) == NAME
        assert not model.training
        assert answers(engine, prompts, GREEDY) == [ref(prompt, NEW) for prompt in prompts]
    assert (attention_of(model), model.training) == (attention, training)
    ids = torch.tensor([prompts[2]])
    output = model.eval().generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)
    assert output[0, ids.shape[1] :].tolist() == ref(prompts[2], NEW)


def test_two_engines_one_after_the_other_use_the_same_model(prompts: list[list[int]]) -> None:
    model = tiny_model()
    for num_blocks in (64, 20):
        with Engine(model, page_size=16, num_blocks=num_blocks) as engine:
            assert answers(engine, prompts, GREEDY) == [ref(prompt, NEW) for prompt in prompts]
    assert attention_of(model) == "sdpa"


def test_a_model_in_use_by_one_engine_is_refused_by_another(prompts: list[list[int]]) -> None:
    """Otherwise the first to close would restore the attention under the other's feet."""
    model = tiny_model()
    with Engine(model, page_size=16, num_blocks=64) as first:
        with pytest.raises(ConfigError, match="in use by another engine"):
            Engine(model, page_size=16, num_blocks=64)
        assert answers(first, prompts, GREEDY) == [ref(prompt, NEW) for prompt in prompts]
    assert attention_of(model) == "sdpa"


def test_a_closed_engine_ends_its_requests_and_takes_no_more(prompts: list[list[int]]) -> None:
    """Its model has its own attention again: a step would mix the sequences of a batch, without any error."""
    engine = Engine(tiny_model(), page_size=16, num_blocks=64)
    requests = ask(engine, prompts, GREEDY)
    iterator = engine.generate(prompts[:2], GREEDY)
    stream = engine.stream(prompts[2], GREEDY)
    next(stream)
    checked_step(engine)
    engine.close()
    engine.close()
    assert all(done.finish_reason is FinishReason.CANCELLED for done in first_choices(requests))
    assert [event.finish_reason for event in stream][-1] is FinishReason.CANCELLED
    assert_idle(engine)
    for call in (lambda: engine.submit(prompts[0]), engine.step, lambda: next(iterator)):
        with pytest.raises(ConfigError, match="this engine is closed"):
            call()


def test_generate_of_an_engine_that_was_closed_meanwhile_ends_with_cancelled_choices(prompts: list[list[int]]) -> None:
    engine = Engine(tiny_model(), page_size=16, num_blocks=64)
    iterator = engine.generate(prompts, [Sampling(max_tokens=1 if i == 0 else NEW) for i in range(len(prompts))])
    assert next(iterator).index == 0
    engine.close()
    assert [done.finish_reason for done in iterator] == [FinishReason.CANCELLED] * (len(prompts) - 1)


def test_an_error_inside_the_with_block_closes_the_engine(prompts: list[list[int]]) -> None:
    model = tiny_model()
    engine = Engine(model, page_size=16, num_blocks=64)
    ask(engine, prompts, GREEDY)
    checked_step(engine)
    with pytest.raises(Broken), engine:
        raise Broken("mine")
    assert_idle(engine)
    assert attention_of(model) == "sdpa"


# -- other weights ------------------------------------------------------------------------------------------------


def test_weights_are_not_changed_under_a_request_that_has_begun(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        (request,) = ask(engine, [prompts[3]], GREEDY)
        engine.weights_changed()  # it waits: nothing was computed for it
        checked_step(engine)
        with pytest.raises(ConfigError, match="1 requests were begun with the old weights"):
            engine.weights_changed()
        checked_step(engine)
        engine._queues.preempt(request.branches[0])  # it waits again, but has an answer begun
        with pytest.raises(ConfigError, match="1 requests were begun with the old weights"):
            engine.weights_changed()
        engine.cancel(request.id)
        engine.weights_changed()
        assert_idle(engine)


def test_nothing_computed_with_other_weights_is_reused(prompts: list[list[int]]) -> None:
    model = tiny_model()
    with Engine(model, page_size=16, num_blocks=64) as engine:
        assert answers(engine, prompts[3:], GREEDY) == [ref(prompts[3], NEW)]
        engine.weights_changed()  # they did not: the content keys are the same, but the pages were dropped
        (again,) = ask(engine, prompts[3:], GREEDY)
        drive(engine)
        assert again.completions()[0].prefix_tokens == 0
        model.load_state_dict(tiny_model(seed=1).state_dict())
        engine.weights_changed()
        (request,) = ask(engine, prompts[3:], GREEDY)
        drive(engine)
        (done,) = request.completions()
        assert done.prefix_tokens == 0
        assert list(done.token_ids) == ref(prompts[3], NEW, seed=1) != ref(prompts[3], NEW)
        assert engine.statistics().prefix_tokens == 0


def test_numpy_prompts_are_taken_as_ids(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        for prompt in (np.array(prompts[2]), torch.tensor(prompts[2]), tuple(prompts[2])):
            assert answers(engine, [prompt], GREEDY) == [ref(prompts[2], NEW)]  # type: ignore[list-item]
