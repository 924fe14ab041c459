"""How a request wants its tokens chosen and when it wants to stop: the options, their ranges, their seeds.

Knows the legal value of each option, and how the seeds of several choices come from one. Does not know logits, torch,
a tokenizer or a model: what an option does to a distribution is in sampling.py, what a stop string does to a text in
detokenizer.py.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from kvpager.errors import ConfigError, RequestError

MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256  # characters

_WORD = 2**64
_CHOICE_SEEDS = 0x6B76_7067_6368_6F69  # domain of the seeds of choices: no draw of sampling.py hashes under it


@dataclass(frozen=True, slots=True)
class _Range:
    """The legal values of a number: from ``low`` to ``high``, both included unless ``above_low``."""

    low: float
    high: float
    above_low: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above_low else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        low = f"above {self.low}" if self.above_low else f"from {self.low}"
        return low if self.high == math.inf else f"{low} to {self.high}"


_INTEGERS = {
    "max_tokens": _Range(0, math.inf),
    "min_tokens": _Range(0, math.inf),
    "top_k": _Range(0, math.inf),
    "n": _Range(1, MAX_CHOICES),
}
_OPTIONAL_INTEGERS = {
    "logprobs": _Range(0, MAX_LOGPROBS),
    "prompt_logprobs": _Range(0, MAX_LOGPROBS),
    "seed": _Range(-(2**63), _WORD - 1),
}
_NUMBERS = {
    "temperature": _Range(0.0, math.inf),
    "top_p": _Range(0.0, 1.0, above_low=True),
    "min_p": _Range(0.0, 1.0),
    "repetition_penalty": _Range(0.01, 100.0),
    "presence_penalty": _Range(-2.0, 2.0),
    "frequency_penalty": _Range(-2.0, 2.0),
}
_TOKEN_ID = _Range(0, math.inf)
_BIAS = _Range(-100.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of a request are chosen, and what ends it. Immutable, comparable, hashable and picklable.

    ==================  =======  =====================  ===============================================================
    option              default  legal values           meaning; when to change it
    ==================  =======  =====================  ===============================================================
    max_tokens          128      0 or more              tokens to generate at most; raise it for long answers. 0: the
                                                        prompt is computed, and that is all
    min_tokens          0        0 to max_tokens        nothing ends the output before it has so many tokens: end and
                                                        stop tokens can't be chosen, stop texts don't count
    temperature         0.0      0 or more              0: greedy, always the likeliest token. Else divides the logits:
                                                        below 1 safer, above 1 more varied
    top_k               0        0 or more              draw among the k likeliest tokens; 0: among all
    top_p               1.0      above 0 to 1           draw among the fewest likeliest tokens that together have this
                                                        probability; 1: among all
    min_p               0.0      0 to 1                 drop tokens less likely than this share of the likeliest; 0: no
    repetition_penalty  1.0      0.01 to 100            above 1: tokens of prompt and output become less likely
    presence_penalty    0.0      -2 to 2                taken off the logit of each token that the output contains
    frequency_penalty   0.0      -2 to 2                taken off the logit once per occurrence in the output
    logit_bias          {}       id -> -100 to 100      added to the logits of these tokens
    logprobs            None     0 to 20                report the token's log-probability and as many alternatives
    prompt_logprobs     None     0 to 20                the same of each token of the prompt; it is computed anew then,
                                                        whatever is known of it
    seed                None     -2**63 to 2**64 - 1    same seed, same output; None: another one each time. Negative
                                                        seeds count as their two's complement
    n                   1        1 to 16                independent choices generated for the prompt
    stop                ()       16 of 1..256 chars     texts that end the output and are not part of it
    stop_token_ids      ()       ids                    tokens that end the output
    ignore_eos          False    bool                   go on after the model's end token; for benchmarks
    ==================  =======  =====================  ===============================================================

    With temperature 0 the options top_k, top_p, min_p and seed change nothing.
    A single string as ``stop`` and any iterables of strings or ids are accepted; they are kept as tuples. The bias is
    kept as a read-only copy.

    Raises:
        ConfigError: a value has the wrong type or is out of its range; NaN, infinities and bools count as wrong types.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, legal in _INTEGERS.items():
            self._set(name, _integer(name, getattr(self, name), legal))
        for name, legal in _OPTIONAL_INTEGERS.items():
            if getattr(self, name) is not None:
                self._set(name, _integer(name, getattr(self, name), legal, "an integer or None"))
        for name, legal in _NUMBERS.items():
            self._set(name, _number(name, getattr(self, name), legal))
        self._set("logit_bias", _bias(self.logit_bias))
        self._set("stop", _stop(self.stop))
        self._set("stop_token_ids", _token_ids(self.stop_token_ids))
        if not isinstance(self.ignore_eos, bool):
            raise _wrong("ignore_eos", self.ignore_eos, "True or False")
        if self.min_tokens > self.max_tokens:
            raise _wrong("min_tokens", self.min_tokens, f"at most max_tokens, which is {self.max_tokens}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by value, for a read-only mapping can't be pickled as it is."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return partial(Sampling, **{**values, "logit_bias": dict(self.logit_bias)}), ()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken, so that no random draw is needed."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether the choice depends on which tokens the request has already seen."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check the token ids of the options against a model.

        Args:
            vocab_size: number of logits the model gives per position; legal ids are 0 <= id < vocab_size.

        Raises:
            RequestError: ``logit_bias`` or ``stop_token_ids`` names a token that the model does not have.
        """
        for name, ids in (("logit_bias", tuple(self.logit_bias)), ("stop_token_ids", self.stop_token_ids)):
            outside = sorted(token for token in ids if token >= vocab_size)
            if outside:
                raise RequestError(
                    f"{name} names token {outside[0]}, but the model's tokens are 0 to {vocab_size - 1}. "
                    "Remove it, or take the ids from this model's own tokenizer."
                )

    def child(self, index: int) -> "Sampling":
        """The options of one of the ``n`` choices, as a request of its own with n=1.

        Choice 0 keeps the seed, so that it equals the answer of the same request with n=1. Choice i > 0 gets
        ``hash64(domain, seed, i)``, see there: a seed of 64 bits that depends on nothing else. Without a seed the
        choices have none either; whoever draws one per request draws one per choice.

        Raises:
            ConfigError: not 0 <= index < n.
        """
        if not 0 <= index < self.n:
            raise ConfigError(f"choice {index} does not exist: n={self.n} choices are numbered 0 to {self.n - 1}.")
        if index == 0 or self.seed is None:
            return replace(self, n=1)
        return replace(self, n=1, seed=hash64(_CHOICE_SEEDS, self.seed, index))


def splitmix64(word: int) -> int:
    """The output of SplitMix64 for a state of 64 bits: a bijection that spreads each bit over all 64.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants of the
    public-domain splitmix64.c by Vigna.
    """
    word = (word + 0x9E37_79B9_7F4A_7C15) % _WORD
    word = ((word ^ (word >> 30)) * 0xBF58_476D_1CE4_E5B9) % _WORD
    word = ((word ^ (word >> 27)) * 0x94D0_49BB_1331_11EB) % _WORD
    return word ^ (word >> 31)


def hash64(*words: int) -> int:
    """64 bits that depend on all of ``words`` and their order, alike in every process and on every machine.

    ``h = 0``, then for each word modulo 2**64: ``h = splitmix64(h ^ word)``. Not for secrets.
    """
    state = 0
    for word in words:
        state = splitmix64(state ^ (word % _WORD))
    return state


def _wrong(name: str, value: object, legal: str) -> ConfigError:
    return ConfigError(f"{name}={_short(value)} is not allowed: it must be {legal}.")


def _short(value: object, limit: int = 80) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python writes out
        return f"a value of type {type(value).__name__} too long to show"
    return text if len(text) <= limit else f"{text[:limit]}..."


def _integer(name: str, value: object, legal: _Range, kind: str = "an integer") -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) not in legal:
        raise _wrong(name, value, f"{kind} {legal}")
    return int(value)


def _number(name: str, value: object, legal: _Range) -> float:
    number = _finite(value)
    if number is None or number not in legal:
        raise _wrong(name, value, f"a finite number {legal}")
    return number


def _finite(value: object) -> float | None:
    """The value as a float, or None if it is no real number, not finite or beyond a float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _bias(value: object) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise _wrong("logit_bias", value, "a mapping of token id to bias")
    return MappingProxyType(
        {
            _integer("a token of logit_bias", token, _TOKEN_ID): _number(f"logit_bias[{_short(token)}]", bias, _BIAS)
            for token, bias in value.items()
        }
    )


def _stop(value: object) -> tuple[str, ...]:
    legal = f"at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_LENGTH} characters"
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong("stop", value, legal)
    texts = (value,) if isinstance(value, str) else tuple(value)
    if len(texts) > MAX_STOP_STRINGS:
        raise _wrong("stop", value, f"{legal}, not {len(texts)} of them")
    for text in texts:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_LENGTH:
            raise _wrong("stop", text, legal)
    return texts


def _token_ids(value: object) -> tuple[int, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong("stop_token_ids", value, "token ids, each an integer from 0")
    return tuple(_integer("a token of stop_token_ids", token, _TOKEN_ID) for token in value)
