"""The options of a request: what is legal, what is not, and the seeds of several choices."""

import copy
import dataclasses
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.engine.sampling_params import Sampling, hash64, splitmix64
from kvpager.errors import ConfigError, RequestError

LEGAL = [
    *[("max_tokens", value) for value in (0, 1, 128, 2**40, np.int32(7))],
    *[("min_tokens", value) for value in (0, 1, 128)],
    *[("temperature", value) for value in (0, 0.0, 1e-300, 0.7, 2, 1e6, np.float32(0.5), Fraction(1, 2))],
    *[("top_k", value) for value in (0, 1, 10**30)],
    *[("top_p", value) for value in (1e-12, 0.5, 1, 1.0)],
    *[("min_p", value) for value in (0, 0.0, 0.5, 1)],
    *[("repetition_penalty", value) for value in (0.01, 0.5, 1, 1.3, 100)],
    *[("presence_penalty", value) for value in (-2, 0, 2.0)],
    *[("frequency_penalty", value) for value in (-2, 0, 2.0)],
    *[("logit_bias", value) for value in ({}, {0: -100}, {7: 100.0, 8: 1})],
    *[("logprobs", value) for value in (None, 0, 20)],
    *[("prompt_logprobs", value) for value in (None, 0, 20)],
    *[("seed", value) for value in (None, -(2**63), 0, 2**64 - 1)],
    *[("n", value) for value in (1, 16)],
    *[("stop", value) for value in ((), "a", ["a", "b"], ("x" * 256,), ["a"] * 16, "x" * 256)],
    *[("stop_token_ids", value) for value in ((), [0], (1, 2), {5}, np.array([3, 4]))],
    *[("ignore_eos", value) for value in (False, True)],
]

ILLEGAL = [
    *[("max_tokens", value) for value in (-1, True, 1.0, "8", None)],
    *[("min_tokens", value) for value in (-1, 129, True, 1.0, None)],
    *[("temperature", value) for value in (-0.1, math.nan, math.inf, -math.inf, True, "1", None, 10**400, 1j)],
    *[("temperature", value) for value in (Decimal(1), [])],
    *[("top_k", value) for value in (-1, False, 2.0, None)],
    *[("top_p", value) for value in (0, 0.0, -0.5, 1.0001, math.nan, True)],
    *[("min_p", value) for value in (-0.1, 1.1, math.nan, False)],
    *[("repetition_penalty", value) for value in (0, 0.0099, 100.1, math.nan, True)],
    *[("presence_penalty", value) for value in (-2.1, 2.1, math.nan, True)],
    *[("frequency_penalty", value) for value in (-2.1, 2.1, math.inf, "0")],
    *[("logit_bias", value) for value in ([(1, 1.0)], {-1: 0.0}, {1: 100.5}, {1: math.nan}, {True: 1}, {"1": 1})],
    *[("logit_bias", value) for value in (None, {1: None}, {1.0: 1.0}, {1: True})],
    *[("logprobs", value) for value in (-1, 21, True, 1.0)],
    *[("prompt_logprobs", value) for value in (-1, 21, True, 1.0)],
    *[("seed", value) for value in (-(2**63) - 1, 2**64, True, 1.5)],
    *[("n", value) for value in (0, 17, True)],
    *[("stop", value) for value in ("", [""], "x" * 257, ["a"] * 17, [1], b"a", 5, None, {"a": 1})],
    *[("stop_token_ids", value) for value in ([-1], [True], [1.0], "12", b"1", 5, None, {1: 2})],
    *[("ignore_eos", value) for value in (1, 0, None, "no")],
]


HASHES = [0, 16294208416658607535, 13608149317741381227, 16171810823986729605]


@pytest.mark.parametrize(("name", "value"), LEGAL)
def test_legal_values_are_kept(name: str, value: object) -> None:
    kept = getattr(Sampling(**{name: value}), name)
    expected = (value,) if name == "stop" and isinstance(value, str) else value
    if name in ("stop", "stop_token_ids"):
        assert isinstance(kept, tuple)
        assert kept == tuple(expected)
    else:
        assert kept == expected


@pytest.mark.parametrize(("name", "value"), ILLEGAL)
def test_illegal_values_are_refused_by_name(name: str, value: object) -> None:
    Sampling(**{name: next(good for option, good in LEGAL if option == name)})
    with pytest.raises(ConfigError, match=name) as error:
        Sampling(**{name: value})
    assert "it must be" in str(error.value)
    assert len(str(error.value)) < 300


def test_the_message_names_value_and_range() -> None:
    with pytest.raises(ConfigError) as error:
        Sampling(top_p=1.5)
    assert str(error.value) == "top_p=1.5 is not allowed: it must be a finite number above 0.0 to 1.0."


@pytest.mark.parametrize("name", ["temperature", "n", "stop"])
def test_a_number_too_long_to_write_is_refused_too(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=a value of type int too long to show"):
        Sampling(**{name: 10**5000})


def test_every_option_has_legal_and_illegal_examples() -> None:
    names = {each.name for each in dataclasses.fields(Sampling)}
    assert {name for name, _ in LEGAL} == names == {name for name, _ in ILLEGAL}


def test_the_docstring_lists_every_option_with_its_default() -> None:
    rows = [line.split() for line in (Sampling.__doc__ or "").splitlines()]
    documented = {row[0]: row[1] for row in rows if len(row) > 2}
    for each in dataclasses.fields(Sampling):
        default = getattr(Sampling(), each.name)
        assert documented[each.name] == str(dict(default) if each.name == "logit_bias" else default)


def test_options_are_keyword_only_and_frozen() -> None:
    with pytest.raises(TypeError):
        Sampling(12)  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sampling().n = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        Sampling(topk=1)  # type: ignore[call-arg]


def test_the_bias_is_a_read_only_copy() -> None:
    given_bias = {1: 2.0}
    sampling = Sampling(logit_bias=given_bias)
    given_bias[1] = 3.0
    assert sampling.logit_bias == {1: 2.0}
    with pytest.raises(TypeError):
        sampling.logit_bias[1] = 0.0  # type: ignore[index]


@pytest.mark.parametrize(
    "clone",
    [lambda each: pickle.loads(pickle.dumps(each)), copy.copy, copy.deepcopy, dataclasses.replace],  # noqa: S301
    ids=["pickle", "copy", "deepcopy", "replace"],
)
def test_clones_are_equal_and_hash_alike(clone) -> None:
    sampling = Sampling(temperature=0.5, logit_bias={3: -1.5}, stop="END", stop_token_ids=[2], seed=5, n=3)
    assert clone(sampling) == sampling
    assert hash(clone(sampling)) == hash(sampling)
    assert clone(sampling) != Sampling()


@pytest.mark.parametrize("options", [{"logit_bias": {10: 1.0}}, {"stop_token_ids": [3, 10]}])
def test_tokens_beyond_the_vocabulary_are_the_clients_fault(options: dict) -> None:
    sampling = Sampling(**options)
    sampling.check_vocabulary(11)
    with pytest.raises(RequestError, match=r"token 10, but the model's tokens are 0 to 9") as error:
        sampling.check_vocabulary(10)
    assert next(iter(options)) in str(error.value)


@pytest.mark.parametrize("greedy", [True, False])
def test_questions(greedy: bool) -> None:
    assert Sampling(temperature=0.0 if greedy else 0.1).is_greedy is greedy
    assert not Sampling().has_penalties
    for option in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        assert Sampling(**{option: 0.5}).has_penalties


def test_choices_keep_all_but_n_and_seed() -> None:
    sampling = Sampling(n=4, seed=9, temperature=0.5, stop="x")
    children = [sampling.child(index) for index in range(4)]
    assert all(dataclasses.replace(child, n=4, seed=9) == sampling for child in children)
    assert [child.n for child in children] == [1] * 4
    assert children[0].seed == 9
    assert len({child.seed for child in children}) == 4


def test_choices_of_a_request_without_a_seed_have_none() -> None:
    assert {Sampling(n=3).child(index).seed for index in range(3)} == {None}


@pytest.mark.parametrize("index", [-1, 2])
def test_choices_that_do_not_exist(index: int) -> None:
    Sampling(n=2).child(1)
    with pytest.raises(ConfigError, match="numbered 0 to 1"):
        Sampling(n=2).child(index)


@given(seed=st.integers(-(2**63), 2**64 - 1), index=st.integers(1, 15))
def test_seeds_of_choices_are_legal_and_depend_on_the_seed_modulo_2_64(seed: int, index: int) -> None:
    child = Sampling(n=16, seed=seed).child(index)
    assert child.seed is not None
    assert 0 <= child.seed < 2**64
    assert child.seed == Sampling(n=16, seed=seed % 2**64).child(index).seed
    assert child.child(0) == child


def test_splitmix64_gives_the_published_stream() -> None:
    """The first outputs for seed 1234567 of the reference splitmix64.c; the state grows by the golden gamma."""
    gamma = 0x9E3779B97F4A7C15
    stream = [splitmix64((1234567 + step * gamma) % 2**64) for step in range(3)]
    assert stream == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_hash64_never_changes_for_outputs_must_be_reproducible_across_versions() -> None:
    assert [hash64(), hash64(0), hash64(1, 2), hash64(2, 1)] == HASHES
    assert hash64(-1) == hash64(2**64 - 1)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=4))
def test_hash64_is_a_word(words: list[int]) -> None:
    assert 0 <= hash64(*words) < 2**64
