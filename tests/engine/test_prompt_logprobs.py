"""Log-probabilities of a prompt against the full forward pass of transformers, however the prompt came to be computed.

And what else scoring clients ask for: no new tokens at all, or not fewer than some.
"""

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvpager.engine import Completion, Engine, FinishReason, PromptLogprob, Sampling
from kvpager.engine.prompt_logprobs import PromptScores
from tests.engine.engines import MAX_STEPS, Numbers, ask, assert_idle, drive, force_preemption, wrapped
from tests.engine.oversized import CONTEXT, PAGE, model, tiers_below
from tests.tiny_model import random_tokens, ref, sharp_prompt, tiny_model

TOP = 3
SCORING = Sampling(max_tokens=4, prompt_logprobs=TOP, temperature=1.3, seed=1, presence_penalty=1.0)
TOLERANCE = 2e-4

Scores = Sequence[PromptLogprob | None]


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return random_tokens(random.Random(5), 90)


def assert_scores(scores: Scores, tokens: list[int], **options: object) -> None:
    """They are those of one plain forward pass over the whole prompt."""
    with torch.inference_mode():
        expected = tiny_model(**options)(torch.tensor([tokens])).logits[0].log_softmax(-1)
    assert len(scores) == len(tokens)
    assert scores[0] is None
    for token, score, row in zip(tokens[1:], scores[1:], expected, strict=False):
        assert score is not None
        assert score.token == token
        assert score.logprob == pytest.approx(row[token].item(), abs=TOLERANCE)
        best = row.topk(TOP)
        assert [each.logprob for each in score.top] == pytest.approx(best.values.tolist(), abs=TOLERANCE)
        gap = (best.values[:-1] - best.values[1:]).min().item()
        assert gap < 2 * TOLERANCE or [each.token for each in score.top] == best.indices.tolist()


def run(engine: Engine, prompts: list[list[int]], sampling: Sampling = SCORING) -> list[Completion]:
    requests = ask(engine, prompts, sampling)
    for _ in range(MAX_STEPS):
        if not engine.has_work:
            break
        engine.step()
    engine.check()
    return [done for request in requests for done in request.completions()]


# -- the values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_batch_tokens": 1},
        {"max_batch_tokens": 7},
        {"deterministic": True},
        {"fused_layers": False},
        {"prefix_cache": False},
    ],
    ids=str,
)
def test_they_are_those_of_a_plain_forward_pass_over_all_chunk_sizes(
    prompt: list[int], options: dict[str, object]
) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64, **options) as engine:
        first, second = run(engine, [prompt, prompt[:31]])
        assert_idle(engine)
    assert_scores(first.prompt_logprobs, prompt)
    assert_scores(second.prompt_logprobs, prompt[:31])


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_is_cached_of_a_prompt_is_computed_again_and_shared_afterwards(
    prompt: list[int], deterministic: bool
) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64, deterministic=deterministic) as engine:
        plain = Sampling(max_tokens=4)
        run(engine, [prompt], plain)
        (done,) = run(engine, [prompt])
        assert done.prefix_tokens == 0
        (again,) = run(engine, [prompt], plain)
        assert again.prefix_tokens == (64 if deterministic else 80)  # what others find has not changed
    assert_scores(done.prompt_logprobs, prompt)


def test_its_pages_are_found_by_others(prompt: list[int]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        run(engine, [prompt])
        assert run(engine, [prompt], Sampling(max_tokens=1))[0].prefix_tokens >= 80


def test_no_cached_page_comes_up_for_one(prompt: list[int], tmp_path: Path) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=8, tiers=tiers_below("host", tmp_path, 64)) as engine:
        run(engine, [prompt], Sampling(max_tokens=1))
        run(engine, [random_tokens(random.Random(6), 100)], Sampling(max_tokens=1))
        (done,) = run(engine, [prompt])
        assert done.prefix_tokens == 0
    assert_scores(done.prompt_logprobs, prompt)


@pytest.mark.parametrize("after", [1, 3, 7])
def test_a_preempted_one_goes_on_where_it_was(prompt: list[int], after: int) -> None:
    with Engine(tiny_model(), page_size=4, num_blocks=64, max_batch_tokens=16) as engine:
        request = engine.submit(prompt, SCORING)
        preempted = []
        drive(engine, lambda number: preempted.append(number == after and force_preemption(engine)))
        (done,) = request.completions()
    assert done.preemptions == sum(preempted) == 1
    assert_scores(done.prompt_logprobs, prompt)


def test_all_choices_have_those_of_the_one_prompt(prompt: list[int]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        request = engine.submit(prompt, Sampling(max_tokens=3, n=3, temperature=1.0, prompt_logprobs=TOP))
        drive(engine)
        choices = request.completions()
    assert len({id(each.prompt_logprobs[1]) for each in choices}) == 1
    assert_scores(choices[2].prompt_logprobs, prompt)
    assert len(choices) == 3


@pytest.mark.parametrize("deterministic", [False, True])
def test_one_that_does_not_fit_on_the_device(tmp_path: Path, deterministic: bool) -> None:
    tokens = random_tokens(random.Random(8), 400)
    given = {"page_size": PAGE, "num_blocks": 60, "deterministic": deterministic, "max_batch_tokens": 64}
    with Engine(model(), tiers=tiers_below("host+disk", tmp_path, 400), **given) as engine:
        (plain,) = run(engine, [tokens], Sampling(max_tokens=1))
        (done,) = run(engine, [tokens])
        assert plain.is_oversized
        assert done.is_oversized
        assert done.prefix_tokens == 0
    assert_scores(done.prompt_logprobs, tokens, max_position_embeddings=CONTEXT, num_hidden_layers=2)


def test_a_step_holds_few_rows_of_logits(prompt: list[int]) -> None:
    """Three prompts of 90 tokens fit into one step; but their logits do not, where few are allowed."""
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        rows = []
        assert engine.limits.max_scored > 10_000
        limits = engine.limits
        engine._loop.limits = replace(limits, max_scored=20)

        def forward(original, batch, tokens, logits_at):  # type: ignore[no-untyped-def]
            rows.append((len(logits_at), batch.num_tokens))
            return original(batch, tokens, logits_at)

        with wrapped(engine.runner, "forward", forward):
            plain = engine.submit(prompt[::-1], Sampling(max_tokens=4))
            done = run(engine, [prompt, prompt[1:], prompt[2:]])
    assert plain.is_finished
    assert max(each for each, _ in rows) <= 24
    assert max(tokens for _, tokens in rows) >= 90  # the one whose logits nobody wants was not held up
    for begin, each in enumerate(done):
        assert_scores(each.prompt_logprobs, prompt[begin:])


def test_those_that_tie_are_named_by_lower_id_and_forbidden_ones_not_at_all() -> None:
    scores = PromptScores(array("i", [0, 4]), 4)
    scores.add(torch.tensor([[0.0, -0.0, 3.0, float("-inf"), 0.0, -1.0, float("-inf")]]))
    assert scores.is_complete
    (_, score) = scores.result()
    assert score is not None
    assert [each.token for each in score.top] == [2, 0, 1, 4]
    forbidden = PromptScores(array("i", [0, 1]), 4)
    forbidden.add(torch.tensor([[0.0, float("-inf"), 1.0]]))
    (_, score) = forbidden.result()
    assert score is not None
    assert score.logprob == float("-inf")
    assert [each.token for each in score.top] == [2, 0]


def test_a_prompt_of_one_token_has_none(prompt: list[int]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        assert run(engine, [prompt[:1]])[0].prompt_logprobs == (None,)
        assert run(engine, [prompt], Sampling(max_tokens=1))[0].prompt_logprobs == ()


def test_damaged_logits_end_that_request_alone(prompt: list[int]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:

        def spoil(original, batch, tokens, logits_at):  # type: ignore[no-untyped-def]
            logits = original(batch, tokens, logits_at).clone()
            logits[logits_at == 5] = float("nan")
            return logits

        with wrapped(engine.runner, "forward", spoil):
            bad, good = run(engine, [prompt, prompt[1:]], SCORING)
        assert_idle(engine)
    assert bad.finish_reason is FinishReason.ERROR
    assert "no distribution" in bad.error
    assert bad.prompt_logprobs == ()
    assert good.finish_reason is FinishReason.LENGTH


# -- the prompt alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2])
def test_the_prompt_can_be_all_that_is_computed(prompt: list[int], n: int) -> None:
    sampling = Sampling(max_tokens=0, prompt_logprobs=TOP, n=n)
    with Engine(tiny_model(), tokenizer=Numbers(), page_size=16, num_blocks=64) as engine:
        done = list(engine.generate([prompt], sampling))
        events = list(engine.stream(prompt, sampling))
        assert_idle(engine)
    assert len(done) == len(events) == n
    assert {(each.finish_reason, each.token_ids, each.text) for each in done} == {(FinishReason.LENGTH, (), "")}
    assert {(event.finish_reason, event.token, event.text) for event in events} == {(FinishReason.LENGTH, None, "")}
    for each in done:
        assert_scores(each.prompt_logprobs, prompt)


def test_without_scores_it_fills_the_cache(prompt: list[int]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        run(engine, [prompt], Sampling(max_tokens=0))
        assert run(engine, [prompt], Sampling(max_tokens=1))[0].prefix_tokens >= 80


# -- not fewer than min_tokens ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sharp() -> list[int]:
    return sharp_prompt(random.Random(11), 40, 16)


def ended(engine: Engine, prompt: list[int], **options: object) -> Completion:
    (done,) = run(engine, [prompt], Sampling(max_tokens=16, **options))
    return done


def test_stop_tokens_and_end_tokens_wait_for_it(sharp: list[int]) -> None:
    answer = ref(sharp, 16)
    ends = tiny_model()
    ends.generation_config.eos_token_id = answer[2]
    with (
        Engine(tiny_model(), page_size=16, num_blocks=64) as stops,
        Engine(ends, page_size=16, num_blocks=64) as engine,
    ):
        for at, options in ((stops, {"stop_token_ids": [answer[2]]}), (engine, {})):
            assert ended(at, sharp, **options).token_ids == tuple(answer[:3])
            assert ended(at, sharp, min_tokens=2, **options).token_ids == tuple(answer[:3])
            later = ended(at, sharp, min_tokens=6, **options)
            assert later.token_ids[:2] == tuple(answer[:2])
            assert answer[2] not in later.token_ids[:6]
            assert len(later.token_ids) >= 6
            drawn = ended(at, sharp, min_tokens=16, temperature=5.0, seed=1, **options)
            assert len(drawn.token_ids) == 16
        assert ended(engine, sharp, min_tokens=6, ignore_eos=True).token_ids == tuple(answer)


def test_stop_texts_wait_for_it(sharp: list[int]) -> None:
    answer = ref(sharp, 16)
    with Engine(tiny_model(), tokenizer=Numbers(), page_size=16, num_blocks=64) as engine:
        stop = f"{answer[2]} {answer[3]} "
        assert ended(engine, sharp, stop=stop).token_ids == tuple(answer[:4])
        assert ended(engine, sharp, stop=stop, min_tokens=4).token_ids == tuple(answer[:4])
        whole = ended(engine, sharp, stop=stop, min_tokens=5)
        assert whole.token_ids == tuple(answer)
        assert whole.text == Numbers().decode(answer, skip_special_tokens=False)
        assert whole.finish_reason is FinishReason.LENGTH
        last = f"{answer[7]} "
        assert ended(engine, sharp, stop=[stop, last], min_tokens=5).token_ids[-1] == answer[7]
