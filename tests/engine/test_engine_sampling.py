"""Sampling through the engine: against Hugging Face, and the same whatever else runs and whatever is preempted."""

import random

import pytest
import torch

from kvpager.engine import Completion, Engine, Sampling
from tests.engine.engines import answers, ask, assert_idle, drive, first_choices, force_preemption
from tests.tiny_model import VOCABULARY, random_tokens, ref, sharp_prompt, tiny_model

NEW = 16


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return sharp_prompt(random.Random(11), 40, NEW)


def run_one(prompt: list[int], sampling: Sampling, **options: object) -> list[Completion]:
    with Engine(tiny_model(), page_size=16, num_blocks=64, **options) as engine:
        return sorted(engine.generate([prompt], sampling), key=lambda done: done.choice)


def logits_of(tokens: list[int]) -> torch.Tensor:
    """[tokens, vocab] of plain TM."""
    with torch.inference_mode():
        logits: torch.Tensor = tiny_model()(torch.tensor([tokens])).logits[0]
        return logits


# -- against plain Hugging Face -----------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_logprobs_are_the_log_softmax_of_plain_logits(prompt: list[int], temperature: float) -> None:
    (done,) = run_one(prompt, Sampling(max_tokens=NEW, logprobs=5, temperature=temperature, seed=3))
    expected = logits_of([*prompt, *done.token_ids])[len(prompt) - 1 : -1].log_softmax(-1)
    assert len(done.logprobs) == NEW
    for token, row, choice in zip(done.token_ids, expected, done.logprobs, strict=True):
        assert choice.token == token
        assert choice.logprob == pytest.approx(row[token].item(), abs=1e-4)
        best = row.topk(5)
        assert [each.logprob for each in choice.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        gap = (best.values[:-1] - best.values[1:]).min().item()
        assert gap < 1e-4 or [each.token for each in choice.top] == best.indices.tolist()


def test_no_logprobs_unless_asked_for(prompt: list[int]) -> None:
    (done,) = run_one(prompt, Sampling(max_tokens=NEW))
    assert done.logprobs == ()
    (done,) = run_one(prompt, Sampling(max_tokens=NEW, logprobs=0))
    assert len(done.logprobs) == NEW
    assert all(each.top == () and each.logprob is not None for each in done.logprobs)


def test_the_repetition_penalty_is_that_of_hugging_face(prompt: list[int]) -> None:
    ids = torch.tensor([prompt])
    model = tiny_model()
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, repetition_penalty=1.8
    )
    expected = output[0, len(prompt) :].tolist()
    (done,) = run_one(prompt, Sampling(max_tokens=40, repetition_penalty=1.8))
    assert list(done.token_ids) == expected
    assert expected != ref(prompt, 40)  # control: the penalty matters here


@pytest.mark.parametrize(("presence", "frequency"), [(2.0, 0.0), (0.0, 1.5), (-1.0, 0.5)])
def test_presence_and_frequency_penalties_follow_their_formula(
    prompt: list[int], presence: float, frequency: float
) -> None:
    repeated = [7] * 8  # TM answers repetition with repetition
    (done,) = run_one(repeated, Sampling(max_tokens=40, presence_penalty=presence, frequency_penalty=frequency))
    rows = logits_of([*repeated, *done.token_ids])[len(repeated) - 1 : -1]
    output: list[int] = []
    for token, row in zip(done.token_ids, rows, strict=True):
        counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=VOCABULARY)
        edited = row - presence * (counts > 0) - frequency * counts
        best = edited.topk(2)
        assert token == best.indices[0].item() or (best.values[0] - best.values[1]).item() < 1e-3
        output.append(token)


def test_a_bias_forces_or_forbids_tokens(prompt: list[int]) -> None:
    first = ref(prompt, 1)[0]
    (done,) = run_one(prompt, Sampling(max_tokens=4, logit_bias={9: 100.0}))
    assert list(done.token_ids) == [9] * 4
    (done,) = run_one(prompt, Sampling(max_tokens=1, logit_bias={first: -100.0}))
    assert list(done.token_ids) != [first]


# -- seeds --------------------------------------------------------------------------------------------------------

RANDOM = Sampling(max_tokens=NEW, temperature=1.0, seed=7)


def test_a_seed_gives_the_same_text_and_another_seed_another(prompt: list[int]) -> None:
    first, again = run_one(prompt, RANDOM), run_one(prompt, RANDOM)
    other = run_one(prompt, Sampling(max_tokens=NEW, temperature=1.0, seed=8))
    assert first[0].token_ids == again[0].token_ids != other[0].token_ids


def test_without_seeds_the_engines_seed_decides(prompt: list[int]) -> None:
    free = Sampling(max_tokens=NEW, temperature=1.0, n=2)
    runs = [[done.token_ids for done in run_one(prompt, free, seed=seed)] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] != runs[0][1]  # choices differ
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        first, second = answers(engine, [prompt, prompt], Sampling(max_tokens=NEW, temperature=1.0))
    assert first != second  # and so do requests


def test_each_choice_equals_a_request_of_its_own_with_the_documented_seed(prompt: list[int]) -> None:
    sampling = Sampling(max_tokens=NEW, temperature=1.0, seed=7, n=4)
    together = run_one(prompt, sampling)
    assert len({done.token_ids for done in together}) > 1
    for done in together:
        (alone,) = run_one(prompt, sampling.child(done.choice))
        assert alone.token_ids == done.token_ids


@pytest.mark.parametrize("num_blocks", [64, 14], ids=["large pool", "small pool"])
def test_seeded_answers_do_not_depend_on_batch_mates_and_preemption(num_blocks: int) -> None:
    """TM's logits differ by rounding between batches, too little to move a draw of these prompts."""
    generator = random.Random(12)
    prompts = [random_tokens(generator, 30) for _ in range(6)]
    each = [
        Sampling(max_tokens=30, temperature=0.8, top_p=0.9, seed=number, repetition_penalty=1.2, frequency_penalty=0.3)
        for number in range(6)
    ]
    alone = [list(run_one(prompt, own)[0].token_ids) for prompt, own in zip(prompts, each, strict=True)]
    with Engine(tiny_model(), page_size=16, num_blocks=num_blocks) as engine:
        assert answers(engine, prompts, each) == alone
        assert (engine.statistics().preemptions > 0) == (num_blocks == 14)
        assert_idle(engine)


def test_logprobs_and_text_of_a_preempted_answer_are_whole(prompt: list[int]) -> None:
    """I25: preempted at every third step."""
    (expected,) = run_one(prompt, Sampling(max_tokens=NEW, logprobs=2))
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        requests = ask(engine, [prompt], Sampling(max_tokens=NEW, logprobs=2))
        drive(engine, lambda number: number % 3 == 2 and force_preemption(engine))
        (done,) = first_choices(requests)
    assert done.preemptions > 3
    assert done.token_ids == expected.token_ids
    assert [each.logprob for each in done.logprobs] == pytest.approx(
        [each.logprob for each in expected.logprobs], abs=1e-4
    )


def test_rows_with_and_without_options_share_a_batch(prompt: list[int]) -> None:
    """A greedy request is not touched by the options of others."""
    generator = random.Random(13)
    prompts = [sharp_prompt(generator, 20, NEW) for _ in range(3)]
    each = [
        Sampling(max_tokens=NEW),
        Sampling(max_tokens=NEW, temperature=1.5, top_k=5, seed=1, presence_penalty=1.0),
        Sampling(max_tokens=NEW, logit_bias={3: 100.0}),
    ]
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        found = answers(engine, prompts, each)
    assert found[0] == ref(prompts[0], NEW)
    assert found[1] != ref(prompts[1], NEW)
    assert found[2] == [3] * NEW
