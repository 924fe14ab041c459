"""Guides through the engine: only what they allow is chosen, whatever else runs; what goes wrong stays with them."""

import random
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kvpager.engine import Completion, Engine, FinishReason, Guide, Sampling
from kvpager.engine.sampling import SampledToken, SamplerRow, SamplingFailure, probabilities, sample
from kvpager.engine.token_counts import TokenCounts
from tests.engine.engines import Numbers, assert_idle, drive, force_preemption
from tests.tiny_model import VOCABULARY, ref, sharp_prompt, tiny_model

NEW = 12
END = 7


class Rising(Guide):
    """Each token is a little higher than the one before; whole from ``length`` tokens on, and complete at ``most``."""

    def __init__(self, length: int = 3, most: int | None = None, *, fails_at: int | None = None) -> None:
        self.length, self.most, self.fails_at = length, most, fails_at
        self.tokens: list[int] = []
        self.forks: list[Rising] = []

    def allowed(self) -> npt.NDArray[np.bool_]:
        if len(self.tokens) == self.fails_at:
            raise RuntimeError("the grammar is broken")
        last = self.tokens[-1] if self.tokens else -1
        ids = np.arange(VOCABULARY - 12)  # shorter than the model's vocabulary, as a tokenizer's may be
        return (last < ids) & (ids <= last + 40)

    def accept(self, token: int) -> None:
        assert self.allowed()[token]
        self.tokens.append(token)

    def fork(self) -> "Rising":
        twin = Rising(self.length, self.most, fails_at=self.fails_at)
        twin.tokens = self.tokens[:]
        self.forks.append(twin)
        return twin

    @property
    def may_end(self) -> bool:
        return len(self.tokens) >= self.length

    @property
    def is_complete(self) -> bool:
        return len(self.tokens) == self.most


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return sharp_prompt(random.Random(11), 40, NEW)


def run(prompt: list[int], guide: Guide | None, *, end: int | None = None, **options: object) -> list[Completion]:
    model = tiny_model()
    model.generation_config.eos_token_id = end
    with Engine(model, page_size=16, num_blocks=64) as engine:
        request = engine.submit(prompt, Sampling(**{"max_tokens": NEW, **options}), guide=guide)
        drive(engine)
        assert_idle(engine)
        return request.completions()


def is_rising(tokens: Collection[int]) -> bool:
    return all(0 < b - a <= 40 for a, b in zip([-1, *tokens], tokens, strict=False))


# -- what is chosen -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.5, 50.0])
def test_only_what_it_allows_is_chosen(prompt: list[int], temperature: float) -> None:
    options = {"temperature": temperature, "seed": 3, "presence_penalty": 1.0, "logit_bias": {500: 100.0}}
    assert not is_rising(run(prompt, None, **options)[0].token_ids)
    guide = Rising()
    (done,) = run(prompt, guide, **options)
    assert len(done.token_ids) == NEW
    assert is_rising(done.token_ids)
    assert done.finish_reason is FinishReason.LENGTH
    assert guide.tokens == []  # each choice has its own
    assert guide.forks[0].tokens == list(done.token_ids)


def test_a_greedy_choice_is_the_likeliest_of_the_allowed(prompt: list[int]) -> None:
    (done,) = run(prompt, Rising(), logprobs=0)
    known = [*prompt, *done.token_ids]
    with torch.inference_mode():
        logits = tiny_model()(torch.tensor([known])).logits[0][len(prompt) - 1 : -1]
    guide = Rising()
    for token, report, row in zip(done.token_ids, done.logprobs, logits, strict=True):
        allowed = torch.zeros(VOCABULARY, dtype=torch.bool)
        allowed[: VOCABULARY - 12] = torch.from_numpy(guide.allowed())
        assert token == row.masked_fill(~allowed, -torch.inf).argmax().item()
        assert report.logprob == pytest.approx(row.log_softmax(-1)[token].item(), abs=1e-4)  # unrestricted
        guide.accept(token)


def test_choices_have_guides_of_their_own(prompt: list[int]) -> None:
    guide = Rising()
    done = run(prompt, guide, n=3, temperature=2.0, seed=1)
    assert all(is_rising(each.token_ids) for each in done)
    assert len({each.token_ids for each in done}) == 3
    assert [fork.tokens for fork in guide.forks] == [list(each.token_ids) for each in done]


def test_a_preempted_request_keeps_it(prompt: list[int]) -> None:
    sampling = Sampling(max_tokens=NEW, temperature=1.5, seed=4)
    (alone,) = run(prompt, Rising(), temperature=1.5, seed=4)
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        request = engine.submit(prompt, sampling, guide=Rising())
        drive(engine, lambda number: number in (2, 5) and force_preemption(engine))
        (done,) = request.completions()
    assert done.preemptions == 2
    assert done.token_ids == alone.token_ids


def test_requests_without_one_are_not_touched(prompt: list[int]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        guided = engine.submit(prompt, Sampling(max_tokens=NEW), guide=Rising())
        plain = engine.submit(prompt, Sampling(max_tokens=NEW))
        drive(engine)
    assert is_rising(guided.completions()[0].token_ids)
    assert plain.completions()[0].token_ids == tuple(ref(prompt, NEW))


# -- where it ends ------------------------------------------------------------------------------------------------


def test_a_complete_text_ends_by_itself(prompt: list[int]) -> None:
    with Engine(tiny_model(), tokenizer=Numbers(), page_size=16, num_blocks=64) as engine:
        events = list(engine.stream(prompt, Sampling(max_tokens=NEW, min_tokens=NEW), guide=Rising(most=4)))
    assert [event.finish_reason for event in events] == [None, None, None, FinishReason.STOP]
    assert all(event.text for event in events)  # the last token too is part of it


@pytest.mark.parametrize("bias", [100.0, -100.0])
def test_end_tokens_are_allowed_exactly_when_the_text_may_end(prompt: list[int], bias: float) -> None:
    options = {"logit_bias": {END: bias}, "temperature": 1.0, "seed": 2, "end": END}
    (done,) = run(prompt, Rising(3), **options)
    if bias > 0:
        assert is_rising(done.token_ids[:3])
        assert done.token_ids[3:] == (END,)
        assert done.finish_reason is FinishReason.STOP
        (later,) = run(prompt, Rising(3), min_tokens=6, **options)
        assert later.token_ids[6:] == (END,)
        assert END not in later.token_ids[:6]
        (never,) = run(prompt, Rising(3), ignore_eos=True, **options)
        assert END not in never.token_ids
    else:
        assert is_rising(done.token_ids)
        assert done.finish_reason is FinishReason.LENGTH


def test_a_stop_token_ends_a_text_that_may_end(prompt: list[int]) -> None:
    (done,) = run(prompt, Rising(3), stop_token_ids=[505], logit_bias={505: 100.0})
    assert done.token_ids[3:] == (505,)


class Nothing(Rising):
    def allowed(self) -> npt.NDArray[np.bool_]:
        return np.zeros(VOCABULARY, np.bool_)


def test_where_nothing_else_is_allowed_it_ends_before_min_tokens() -> None:
    row = SamplerRow(
        sampling=Sampling(min_tokens=5), history=TokenCounts(()), end_tokens=frozenset([END]), guide=Nothing(0)
    )
    assert sample(torch.zeros(1, VOCABULARY), [row]) == [SampledToken(END)]


# -- what goes wrong ----------------------------------------------------------------------------------------------


def test_one_that_raises_ends_its_own_choice_only(prompt: list[int]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        bad = engine.submit(prompt, Sampling(max_tokens=NEW, n=2), guide=Rising(fails_at=2))
        good = engine.submit(prompt, Sampling(max_tokens=NEW), guide=Rising())
        plain = engine.submit(prompt, Sampling(max_tokens=NEW))
        drive(engine)
        assert_idle(engine)
    for done in bad.completions():
        assert done.finish_reason is FinishReason.ERROR
        assert "the grammar is broken" in done.error
        assert len(done.token_ids) == 2
    assert len(good.completions()[0].token_ids) == NEW
    assert plain.completions()[0].token_ids == tuple(ref(prompt, NEW))


class Refusing(Rising):
    def accept(self, token: int) -> None:
        raise ValueError("not this one")

    def fork(self) -> "Refusing":
        return self


def test_one_that_refuses_a_token_ends_its_choice(prompt: list[int]) -> None:
    (done,) = run(prompt, Refusing())
    assert done.finish_reason is FinishReason.ERROR
    assert "not this one" in done.error


def test_one_that_allows_nothing_says_so() -> None:
    rows = [SamplerRow(sampling=Sampling(), history=TokenCounts(()), guide=guide) for guide in (Nothing(), Rising())]
    logits = torch.zeros(2, VOCABULARY)
    nothing, something = sample(logits, rows)
    assert nothing == SamplingFailure("the guide of its text allows no token here")
    assert something == SampledToken(0)
    drawn_from = probabilities(logits, rows)
    assert drawn_from[0].isnan().all()
    assert drawn_from[1, 0] == 1.0
    assert logits.eq(0).all()


def test_batches_without_guides_pay_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("kvpager.engine.sampling.restrict", lambda *args: calls.append(args) or {})
    row = SamplerRow(sampling=Sampling(), history=TokenCounts(()))
    guided = SamplerRow(sampling=Sampling(), history=TokenCounts(()), guide=Rising())
    sample(torch.zeros(2, VOCABULARY), [row, row])
    assert calls == []
    sample(torch.zeros(2, VOCABULARY), [row, guided])
    assert [len(logits) for logits, _ in calls] == [1]
