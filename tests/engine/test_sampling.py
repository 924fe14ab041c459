"""Tokens from logits: against Hugging Face's processors, a slow oracle, and the statistics of many draws."""

import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from kvpager.engine.sampling import (
    SampledToken,
    SamplerRow,
    SamplingFailure,
    TokenLogprob,
    probabilities,
    sample,
    uniform,
)
from kvpager.engine.sampling_params import Sampling
from kvpager.engine.token_counts import TokenCounts
from kvpager.errors import ConfigError, InvariantError

INF = math.inf
UNIFORMS = [0.974358250403399, 0.47249875074347236, 0.20442858034288436, 0.4876016086325904]


def row(prompt=(), output=(), *, row_seed: int = 0, **options: object) -> SamplerRow:
    return SamplerRow(sampling=Sampling(**options), history=TokenCounts(prompt, output), seed=row_seed)


def random_logits(rows: int, vocab: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def tokens(logits: torch.Tensor, rows: list[SamplerRow]) -> list[int]:
    return [result.token for result in sample(logits, rows)]


def oracle(logits: list[float], sampling: Sampling, prompt: list[int], output: list[int]) -> list[float]:
    """The distribution, one token at a time in Python floats."""
    scores = [float(logit) + sampling.logit_bias.get(token, 0.0) for token, logit in enumerate(logits)]
    for token in {*prompt, *output}:
        r = sampling.repetition_penalty
        scores[token] = scores[token] * r if scores[token] < 0 else scores[token] / r
    for token, count in Counter(output).items():
        scores[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if sampling.is_greedy:
        return [float(token == order[0]) for token in range(len(scores))]
    weights = [math.exp((score - max(scores)) / sampling.temperature) for score in scores]
    weights = [weight if weight >= sampling.min_p else 0.0 for weight in weights]
    kept = order[: sampling.top_k or None]
    total, before, nucleus = sum(weights[token] for token in kept), 0.0, []
    for token in kept:
        if before < sampling.top_p * total:
            nucleus.append(token)
        before += weights[token]
    mass = sum(weights[token] for token in nucleus)
    return [weights[token] / mass if token in nucleus else 0.0 for token in range(len(scores))]


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        "top_k": st.integers(0, 14),
        "top_p": st.sampled_from([0.05, 0.37, 0.81, 0.999, 1.0]),
        "min_p": st.sampled_from([0.0, 0.013, 0.21, 1.0]),
        "repetition_penalty": st.sampled_from([0.7, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([-0.7, 0.0, 1.1]),
        "frequency_penalty": st.sampled_from([-0.3, 0.0, 0.9]),
        "logit_bias": st.dictionaries(st.integers(0, 11), st.sampled_from([-100.0, -1.5, 2.25]), max_size=3),
        "logprobs": st.sampled_from([None, 0, 3]),
    },
)
HISTORIES = st.lists(st.integers(0, 11), max_size=8)


@st.composite
def sampler_rows(draw: st.DrawFn) -> SamplerRow:
    return row(draw(HISTORIES), draw(HISTORIES), row_seed=draw(st.integers(0, 2**64 - 1)), **draw(OPTIONS))


class TestDistribution:
    @settings(max_examples=300)
    @given(options=OPTIONS, prompt=HISTORIES, output=HISTORIES, seed=st.integers(0, 1000))
    def test_equals_the_oracle(self, options: dict, prompt: list[int], output: list[int], seed: int) -> None:
        logits = random_logits(1, 12, seed)
        ours = probabilities(logits, [row(prompt, output, **options)])[0]
        expected = oracle(logits[0].tolist(), Sampling(**options), prompt, output)
        assert ours.tolist() == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize("vocab", [1, 2, 97, 5000])
    @pytest.mark.parametrize(
        ("options", "warper"),
        [
            ({"temperature": 1.0}, TemperatureLogitsWarper(1.0)),
            ({"temperature": 0.6}, TemperatureLogitsWarper(0.6)),
            ({"top_k": 1}, TopKLogitsWarper(1)),
            ({"top_k": 7}, TopKLogitsWarper(7)),
            ({"top_p": 0.9}, TopPLogitsWarper(0.9)),
            ({"top_p": 0.3}, TopPLogitsWarper(0.3)),
            ({"min_p": 0.05}, MinPLogitsWarper(0.05)),
        ],
    )
    def test_equals_hugging_face(self, vocab: int, options: dict, warper) -> None:
        logits = random_logits(4, vocab).double()
        expected = warper(torch.zeros(4, 1, dtype=torch.long), logits.clone()).softmax(-1)
        ours = probabilities(logits, [row(**{"temperature": 1.0, **options})] * 4)
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)

    def test_top_p_of_a_flat_distribution_looks_beyond_its_first_tokens(self) -> None:
        logits = random_logits(2, 5000, scale=0.1).double()
        expected = TopPLogitsWarper(0.9)(torch.zeros(2, 1, dtype=torch.long), logits.clone()).softmax(-1)
        assert int((expected[0] > 0).sum()) > 4000
        torch.testing.assert_close(
            probabilities(logits, [row(temperature=1.0, top_p=0.9)] * 2), expected, atol=1e-7, rtol=1e-4
        )

    @pytest.mark.parametrize("penalty", [0.5, 1.0, 1.4])
    def test_repetition_penalty_equals_hugging_face(self, penalty: float) -> None:
        logits = random_logits(1, 50)
        prompt, output = [3, 7, 7, 9], [9, 20]
        expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits.clone())
        ours = probabilities(logits, [row(prompt, output, temperature=1.0, repetition_penalty=penalty)])
        torch.testing.assert_close(ours, expected.double().softmax(-1), atol=1e-7, rtol=1e-5)

    def test_presence_and_frequency_count_the_output_only(self) -> None:
        ours = probabilities(
            torch.zeros(1, 4), [row([0, 0], [1, 2, 2], temperature=1.0, presence_penalty=0.5, frequency_penalty=0.25)]
        )
        expected = torch.tensor([[0.0, -0.75, -1.0, 0.0]], dtype=torch.float64).softmax(-1)
        torch.testing.assert_close(ours, expected, atol=1e-7, rtol=0)

    def test_min_p_comes_before_top_k_and_top_p(self) -> None:
        logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
        ours = probabilities(logits, [row(temperature=1.0, min_p=0.2, top_p=0.84)])[0]
        assert ours.tolist() == pytest.approx(
            [0.625, 0.375, 0, 0], abs=1e-6
        )  # 0.8 of the 0.95 left is not 0.84 of 0.95
        assert probabilities(logits, [row(temperature=1.0, top_p=0.84)])[0].tolist()[2] > 0

    def test_top_p_is_a_share_of_what_top_k_left(self) -> None:
        logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
        ours = probabilities(logits, [row(temperature=1.0, top_k=2, top_p=0.6)])[0]
        assert ours.tolist() == pytest.approx([1, 0, 0, 0], abs=1e-6)
        assert probabilities(logits, [row(temperature=1.0, top_p=0.6)])[0, 1] > 0

    def test_equal_tokens_are_kept_from_the_lowest_id(self) -> None:
        for options in ({"top_k": 2}, {"top_p": 0.5}):
            ours = probabilities(torch.tensor([[0.0, 1.0, 1.0, 1.0, 1.0]]), [row(temperature=1e-3, **options)])
            assert ours.tolist() == [[0, 0.5, 0.5, 0, 0]]

    @pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-3, 1e300])
    def test_no_temperature_overflows(self, temperature: float) -> None:
        logits = torch.tensor([[-1e30, 5.0, 1e30, -INF]])
        ours = probabilities(logits, [row(temperature=temperature)])[0]
        assert ours.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0] if temperature > 1 else [0, 0, 1, 0])

    def test_forbidden_tokens_have_no_probability(self) -> None:
        logits = torch.tensor([[-INF, 0.0, -INF, 0.0]])
        rows = [row(temperature=9.0, repetition_penalty=2.0, top_k=4, logit_bias={0: 100})]
        assert probabilities(logits, rows).tolist() == [[0, 0.5, 0, 0.5]]

    def test_tokens_without_a_logit_are_not_penalised(self) -> None:
        """A prompt of a model that sees may hold ids of images beyond the vocabulary."""
        logits = torch.tensor([[1.0, 0.9]])
        assert tokens(logits, [row([77], repetition_penalty=2.0)]) == [0]
        assert tokens(logits, [row([77, 0], repetition_penalty=2.0)]) == [1]


class TestGreedy:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_is_the_highest_logit_whatever_else_is_asked(self, dtype: torch.dtype) -> None:
        logits = random_logits(5, 1000).to(dtype)
        expected = logits.argmax(-1).tolist()
        assert tokens(logits, [row()] * 5) == expected
        assert tokens(logits, [row(top_k=3, top_p=0.4, min_p=0.9, row_seed=5)] * 5) == expected

    @pytest.mark.parametrize("vocab", [2, 33, 1000, 50257, 128256])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_equal_logits_give_the_lowest_id_however_chosen(self, vocab: int, dtype: torch.dtype) -> None:
        logits = torch.zeros(3, vocab, dtype=dtype)
        first = vocab // 3
        logits[:, first:] = 7.0
        rows = [row(), row(temperature=1.0, top_k=1), row(temperature=1.0, top_p=1e-9)]
        assert tokens(logits, rows) == [first] * 3
        assert tokens(logits, [row(repetition_penalty=1.1)] * 3) == [first] * 3

    def test_bias_and_penalties_change_it(self) -> None:
        logits = torch.tensor([[2.0, 1.0, 0.0]])
        assert tokens(logits, [row()]) == [0]
        assert tokens(logits, [row(logit_bias={2: 3.0})]) == [2]
        assert tokens(logits, [row([0], repetition_penalty=3.0)]) == [1]
        assert tokens(logits, [row([0], [0], presence_penalty=1.5)]) == [1]
        assert tokens(logits, [row([], [0, 0, 1], frequency_penalty=1.1)]) == [2]
        assert tokens(logits, [row([0, 0])]) == [0]


class TestDraw:
    def test_uniform_numbers_never_change(self) -> None:
        assert [uniform(0, 0), uniform(0, 1), uniform(1, 0), uniform(2**64 - 1, 10**6)] == UNIFORMS
        assert uniform(-1, 3) == uniform(2**64 - 1, 3)

    @given(st.integers(0, 2**64 - 1), st.integers(0, 10**7))
    def test_uniform_numbers_are_below_one(self, seed: int, position: int) -> None:
        assert 0.0 <= uniform(seed, position) < 1.0

    def test_a_new_process_draws_the_same(self) -> None:
        code = "from kvpager.engine.sampling import uniform; print([uniform(7, i) for i in range(5)])"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert other.stdout.strip() == str([uniform(7, i) for i in range(5)])

    @pytest.mark.parametrize("along", ["positions", "seeds", "choices"])
    def test_uniform_numbers_are_uniform_and_uncorrelated(self, along: str) -> None:
        if along == "positions":
            numbers = [uniform(1234, i) for i in range(20_000)]
        elif along == "seeds":
            numbers = [uniform(i, 0) for i in range(20_000)]
        else:
            children = [Sampling(n=4, seed=i).child(index) for i in range(5000) for index in range(4)]
            numbers = [uniform(child.seed or 0, 3) for child in children]
        bins = np.histogram(numbers, bins=50, range=(0, 1))[0]
        assert chi_square(bins, np.full(50, 1 / 50)) < critical(49)
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.025

    @pytest.mark.parametrize(
        "options",
        [
            {"temperature": 1.0},
            {"temperature": 0.7, "top_k": 5},
            {"temperature": 1.3, "top_p": 0.8},
            {"temperature": 1.0, "min_p": 0.1},
            {"temperature": 1.0, "repetition_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {1: 1.0}},
            {"temperature": 1.0, "top_k": 6, "top_p": 0.9, "min_p": 0.02},
        ],
        ids=lambda options: "-".join(options),
    )
    def test_frequencies_are_those_of_the_oracle(self, options: dict) -> None:
        logits, prompt = random_logits(1, 12, scale=1.0), [1, 2, 3]
        expected = np.array(oracle(logits[0].tolist(), Sampling(**options), prompt, []))
        rows = [row(prompt, row_seed=seed, **options) for seed in range(8000)]
        counts = np.bincount(tokens(logits.expand(8000, -1), rows), minlength=12)
        assert counts[expected == 0].sum() == 0
        possible = expected > 0
        assert chi_square(counts[possible], expected[possible]) < critical(int(possible.sum()) - 1)
        uneven = expected[possible][::-1]
        assert chi_square(counts[possible], uneven) > critical(int(possible.sum()) - 1)  # the test can fail

    def test_each_position_draws_anew_and_a_replayed_history_draws_the_same(self) -> None:
        logits = random_logits(1, 500, scale=0.5)
        first = row([1, 2], temperature=1.0, row_seed=11)
        output: list[int] = []
        for _ in range(30):
            output += tokens(logits, [first])
            first.history.append(output[-1])
        assert len(set(output)) > 10
        for length in (0, 1, 17, 29):  # as after a preemption: rebuilt from its tokens
            assert tokens(logits, [row([1, 2], output[:length], temperature=1.0, row_seed=11)]) == [output[length]]

    def test_seeds_differ(self) -> None:
        logits = torch.zeros(50, 1000)
        assert len(set(tokens(logits, [row(temperature=1.0, row_seed=seed) for seed in range(50)]))) > 40

    @pytest.mark.parametrize("options", [{}, {"top_k": 900}, {"top_p": 0.99}])
    def test_never_draws_what_has_no_probability(self, options: dict) -> None:
        logits = torch.full((200, 1000), -INF)
        logits[:, 501] = 0.0
        rows = [row(temperature=5.0, row_seed=seed, **options) for seed in range(200)]
        assert set(tokens(logits, rows)) == {501}

    @pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"top_p": 0.9999}])
    @pytest.mark.parametrize(("number", "token"), [(0.0, 1), (1 - 2.0**-53, 2)], ids=["lowest", "highest"])
    def test_the_extreme_numbers_draw_possible_tokens(
        self, monkeypatch: pytest.MonkeyPatch, number: float, token: int, options: dict
    ) -> None:
        monkeypatch.setattr("kvpager.engine.sampling.uniform", lambda seed, position: number)
        logits = torch.tensor([[-INF, 0.5, 0.0, -INF]])
        assert tokens(logits, [row(temperature=1.0, **options)]) == [token]

    @pytest.mark.parametrize("vocab", [8191, 2**13, 2**14 + 3, 2**17 - 1])
    def test_the_highest_number_stays_in_a_vocabulary_whose_sum_is_rounded(
        self, monkeypatch: pytest.MonkeyPatch, vocab: int
    ) -> None:
        monkeypatch.setattr("kvpager.engine.sampling.uniform", lambda seed, position: 1 - 2.0**-53)
        logits = random_logits(1, vocab, scale=1e-3)
        assert tokens(logits, [row(temperature=1.0)]) == [vocab - 1]


class TestBatch:
    @settings(max_examples=100)
    @given(rows=st.lists(sampler_rows(), min_size=1, max_size=6), seed=st.integers(0, 1000), data=st.data())
    def test_mates_and_place_change_nothing(self, rows: list[SamplerRow], seed: int, data: st.DataObject) -> None:
        logits = random_logits(len(rows), 12, seed)
        alone = [sample(logits[i : i + 1], [each])[0] for i, each in enumerate(rows)]
        order = data.draw(st.permutations(range(len(rows))))
        assert sample(logits[order], [rows[i] for i in order]) == [alone[i] for i in order]

    def test_a_flat_mate_changes_nothing(self) -> None:
        """It makes top_p rank the whole vocabulary for all."""
        logits = torch.cat([random_logits(1, 5000), torch.zeros(1, 5000)])
        for seed in range(20):
            rows = [row(temperature=1.0, top_p=0.9, row_seed=seed)] * 2
            assert sample(logits, rows)[0] == sample(logits[:1], rows[:1])[0]

    def test_inputs_are_not_changed(self) -> None:
        logits = random_logits(3, 12)
        before = logits.clone()
        rows = [row(), row([1], [2], temperature=1.0, top_k=3, logit_bias={1: 2.0}), row([1], repetition_penalty=2.0)]
        sample(logits, rows)
        probabilities(logits, rows)
        assert torch.equal(logits, before)
        assert rows[1].history.num_output == 1

    def test_views_are_accepted(self) -> None:
        logits = random_logits(4, 40)
        rows = [row(), row(temperature=1.0, logprobs=2)]
        assert sample(logits[::2, ::2], rows) == sample(logits[::2, ::2].clone(), rows)

    def test_no_rows(self) -> None:
        assert sample(torch.zeros(0, 5), []) == []
        assert probabilities(torch.zeros(0, 5), []).shape == (0, 5)

    @pytest.mark.parametrize(
        ("shape", "dtype"),
        [((5,), torch.float32), ((2, 5), torch.float32), ((1, 5), torch.int64), ((1, 0), torch.float32)],
    )
    def test_shapes_that_do_not_agree(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        sample(torch.zeros(1, 5), [row()])
        for function in (sample, probabilities):
            with pytest.raises(ConfigError, match="must be"):
                function(torch.zeros(shape, dtype=dtype), [row()])


class TestFailure:
    BAD = ({3: math.nan}, {3: INF}, dict.fromkeys(range(12), -INF), {0: math.nan, 1: INF})
    ASKED = ({}, {"logprobs": 3}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}, {"repetition_penalty": 1.2})

    @pytest.mark.parametrize("bad", BAD, ids=["nan", "inf", "none-allowed", "nan-inf"])
    @pytest.mark.parametrize("options", ASKED, ids=lambda options: "-".join(options) or "greedy")
    def test_damaged_logits_fail_their_row_only(self, bad: dict, options: dict) -> None:
        logits = random_logits(3, 12)
        rows = [row([1], [2], row_seed=seed, **options) for seed in range(3)]
        sound = sample(logits, rows)
        assert all(isinstance(result, SampledToken) for result in sound)
        for token, value in bad.items():
            logits[1, token] = value
        results = sample(logits, rows)
        assert isinstance(results[1], SamplingFailure)
        assert "no distribution" in results[1].reason
        assert [results[0], results[2]] == [sound[0], sound[2]]
        assert probabilities(logits, rows).isnan().any(dim=-1).tolist() == [False, True, False]

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_options_that_overflow_fail_their_row_only(self, temperature: float) -> None:
        logits = torch.tensor([[3e38, 0.0], [3e38, 0.0]])
        rows = [row([0], temperature=temperature, repetition_penalty=r) for r in (0.01, 1.5)]
        results = sample(logits, rows)
        assert isinstance(results[0], SamplingFailure)
        assert results[1] == SampledToken(0)


class TestLogprobs:
    def test_are_those_of_the_unmodified_logits(self) -> None:
        logits = random_logits(2, 40).to(torch.bfloat16)
        rows = [
            row([5], [6], temperature=0.5, top_k=5, logit_bias={3: 9.0}, repetition_penalty=1.3, logprobs=4),
            row(logprobs=4),
        ]
        expected = logits.float().log_softmax(-1)
        for i, result in enumerate(sample(logits, rows)):
            assert result.logprob == pytest.approx(float(expected[i, result.token]), abs=1e-6)
            assert [each.logprob for each in result.top] == pytest.approx(
                expected[i].sort(descending=True).values[:4].tolist()
            )

    def test_are_not_computed_unless_asked_for(self) -> None:
        zero, none = sample(torch.zeros(2, 3), [row(logprobs=0), row()])
        assert zero == SampledToken(0, pytest.approx(-math.log(3)), ())
        assert none == SampledToken(0, None, ())

    def test_equal_alternatives_come_by_id(self) -> None:
        logits = torch.zeros(1, 3000)
        logits[0, 2000] = 1.0
        assert [each.token for each in sample(logits, [row(logprobs=5)])[0].top] == [2000, 0, 1, 2, 3]

    def test_forbidden_tokens_are_no_alternatives(self) -> None:
        top = sample(torch.tensor([[-INF, 0.0, -INF]]), [row(logprobs=20)])[0].top
        assert top == (TokenLogprob(1, 0.0),)


class TestTokenCounts:
    @given(prompt=st.lists(st.integers(0, 50)), output=st.lists(st.integers(0, 50)), split=st.integers(0, 50))
    def test_equals_a_counter(self, prompt: list[int], output: list[int], split: int) -> None:
        counts = TokenCounts(prompt, output[:split])
        for token in output[split:]:
            counts.append(token)
            counts.check()
        assert counts.num_output == len(output)
        expected = {token: output.count(token) for token in {*prompt, *output}}
        assert dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)) == expected

    def test_takes_arrays(self) -> None:
        assert TokenCounts(np.array([4, 4, 2])).ids.tolist() == [2, 4]

    def test_check_finds_a_wrong_count(self) -> None:
        counts = TokenCounts([1], [2, 2])
        counts.check()
        counts.counts[0] += 1
        with pytest.raises(InvariantError, match="disagree"):
            counts.check()

    def test_grows_seldom(self) -> None:
        counts = TokenCounts([])
        buffers = set()
        for token in range(10_000):
            counts.append(token)
            buffers.add(len(counts._ids))
        assert len(buffers) < 12


def chi_square(counts: np.ndarray, shares: np.ndarray) -> float:
    """Pearson's statistic of observed counts against expected shares."""
    expected = counts.sum() * shares
    return float(((counts - expected) ** 2 / expected).sum())


def critical(degrees: int) -> float:
    """The chi-square value exceeded with probability 1e-4, by Wilson and Hilferty (1931)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 3.719 * math.sqrt(spread)) ** 3
