"""``allocation`` of an engine: the same tokens with runs of blocks as with pages, fewer at once, clear refusals."""

import random

import pytest

from kvpager import ConfigError
from kvpager.engine import Engine, Sampling
from kvpager.errors import RequestError
from tests.engine.engines import answers, ask, assert_idle, checked_step
from tests.tiny_model import ref, sharp_prompt, tiny_model

PAGE, CONTEXT = 4, 32
SETTING = {"page_size": PAGE, "num_blocks": 20, "max_context": CONTEXT, "max_batch_tokens": 16}


def some_prompts(count: int = 5) -> tuple[list[list[int]], list[Sampling]]:
    draw = random.Random(3)
    prompts = [sharp_prompt(draw, draw.randrange(3, 12), 8) for _ in range(count)]
    return prompts, [Sampling(max_tokens=draw.randrange(3, 9), temperature=0.0) for _ in prompts]


def most_running(engine: Engine) -> int:
    most = 0
    while engine.has_work:
        checked_step(engine)
        most = max(most, len(engine.branches()))
    return most


@pytest.mark.parametrize("deterministic", [False, True], ids=["default", "deterministic"])
@pytest.mark.parametrize("allocation", ["contiguous", "contiguous-exact"])
def test_tokens_are_those_of_plain_generation(allocation: str, deterministic: bool) -> None:
    prompts, sampling = some_prompts()
    setting = SETTING | {"num_blocks": 40, "max_context": 64, "max_batch_tokens": 64}
    with Engine(tiny_model(), allocation=allocation, deterministic=deterministic, **setting) as engine:
        expected = [ref(prompt, own.max_tokens) for prompt, own in zip(prompts, sampling, strict=True)]
        assert answers(engine, prompts, sampling) == expected
        assert_idle(engine)
        assert engine.statistics().preemptions == 0


def test_whole_contexts_let_fewer_run_than_exact_runs() -> None:
    most = {}
    for allocation in ("contiguous", "contiguous-exact", "paged"):
        prompts, sampling = some_prompts()
        with Engine(tiny_model(), allocation=allocation, **SETTING) as engine:
            ask(engine, prompts, sampling)
            most[allocation] = most_running(engine)
            assert_idle(engine)
    assert most["contiguous"] == 20 // (CONTEXT // PAGE)
    assert most["contiguous"] < most["contiguous-exact"] <= most["paged"]


def test_a_hole_that_is_too_small_holds_the_queue_up_however_much_is_free() -> None:
    draw = random.Random(5)
    a, b, c, d = (sharp_prompt(draw, length, 8) for length in (PAGE, 6 * PAGE, PAGE, 7 * PAGE))
    with Engine(tiny_model(), allocation="contiguous-exact", **SETTING) as engine:
        short, long = Sampling(max_tokens=5, temperature=0.0), Sampling(max_tokens=8, temperature=0.0)
        requests = ask(engine, [a, b, c, d], [short, long, long, short])
        while not requests[0].is_finished:
            checked_step(engine)
        runs = engine.cache.runs
        assert runs is not None
        held = runs.statistics()
        assert held.free >= 8 > held.longest, "d's 8 blocks are free, but not side by side"
        assert engine.num_waiting == 1
        while engine.has_work:
            checked_step(engine)
        assert list(requests[3].completions()[0].token_ids) == ref(d, 5)


def test_what_can_never_have_its_run_is_refused() -> None:
    with (
        Engine(tiny_model(), allocation="contiguous", **SETTING | {"num_blocks": 7}) as engine,
        pytest.raises(RequestError, match="reserves 8 blocks in a row"),
    ):
        engine.submit([1, 2, 3], Sampling(max_tokens=2))
    for allocation in ("contiguous-exact", "paged"):
        with Engine(tiny_model(), allocation=allocation, **SETTING | {"num_blocks": 7}) as engine:
            assert len(answers(engine, [[1, 2, 3]], Sampling(max_tokens=2))[0]) == 2


def test_several_choices_are_refused() -> None:
    with Engine(tiny_model(), allocation="contiguous", **SETTING) as engine:
        with pytest.raises(RequestError, match="can't fork"):
            engine.submit([1, 2, 3], Sampling(n=2))
        engine.submit([1, 2, 3], Sampling(n=1, max_tokens=1))


def test_tiers_are_refused() -> None:
    with pytest.raises(ConfigError, match="no tiers"):
        Engine(tiny_model(), allocation="contiguous", tiers=("host=1MiB",), **SETTING)
