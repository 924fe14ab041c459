"""Logits in, the next token of each request out.

Knows what each option of a ``Sampling`` does to a distribution, and how to draw from it. Does not know when a request
ends, text, the scheduler or the model, and keeps no state: a draw is a function of the row's logits, its history and
its seed, so it is the same alone or in a batch, in each process, and after a preemption.

A row's logits go through, in this order (that of vLLM; the formulas of Hugging Face and OpenAI):

    0. guide, min_tokens    l[t] = -inf, t not allowed here                                       restriction.py
    1. logit_bias           l[t] += bias[t]                                                       OpenAI
    2. repetition_penalty   l[t] = l[t] / r if l[t] >= 0 else l[t] * r, t in prompt or output     HF, CTRL (2019)
    3. presence, frequency  l[t] -= presence + frequency * count(t), t in output                  OpenAI
    4. temperature          0: the highest logit, done. Else l = l / temperature
    5. min_p                keep t if p[t] >= min_p * max(p)                                      HF
    6. top_k                keep the first k
    7. top_p                keep the first ones until they have the share top_p of what 6 left
    8. draw                 the token at the uniform number of (seed, output position)

"First" is by higher probability, then by lower id; so top_k=1, a tiny top_p and temperature 0 choose the same token.
(HF keeps all tokens that tie with the k-th.) From step 5 on probabilities are integers, 2**40 for the likeliest token
of the row: their sums are exact, so no order of summation, batch size or device can change what is kept or drawn. A
token less likely than 2**-41 of the likeliest is never drawn.

Log-probabilities are reported of the logits as the model gave them, before step 0, in float32: what the model thinks,
whatever it is allowed to say.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kvpager.engine.guide import Guide
from kvpager.engine.highest import highest
from kvpager.engine.restriction import restrict
from kvpager.engine.sampling_params import Sampling, hash64
from kvpager.engine.token_counts import TokenCounts
from kvpager.errors import ConfigError

MAX_VOCABULARY = 2**22  # tokens; weight and id of a token share an int64

_DRAWS = 0x6B76_7067_6472_6177  # domain of the draws: no seed of a choice hashes under it
_UNIT = 2**40  # weight of the likeliest token; MAX_VOCABULARY * _UNIT fits in an int64
_ID_MASK = MAX_VOCABULARY - 1
_NUCLEUS_WIDTH = 1024  # tokens ranked first for top_p; more, if these don't have enough probability


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRow:
    """What is needed to choose the tokens of one request: made once per request, and its history appended to.

    REQUIRES: ``sampling.check_vocabulary`` has passed for the model. ``seed`` is that of ``sampling``, or one drawn
    for this request when that is None. ``end_tokens``: the model's own. ``guide``: restricts its text.
    """

    sampling: Sampling
    history: TokenCounts
    seed: int = 0
    end_tokens: frozenset[int] = frozenset()
    guide: Guide | None = None
    ends: frozenset[int] = field(init=False)  # the tokens that end its output
    is_plain: bool = field(init=False)  # the highest logit as it is: no option changes it

    def __post_init__(self) -> None:
        sampling = self.sampling
        is_free = self.guide is None and not sampling.min_tokens
        is_plain = is_free and sampling.is_greedy and not sampling.has_penalties and not sampling.logit_bias
        object.__setattr__(self, "is_plain", is_plain)
        own = frozenset() if sampling.ignore_eos else self.end_tokens
        object.__setattr__(self, "ends", own.union(sampling.stop_token_ids))

    @property
    def must_go_on(self) -> bool:
        """Whether the output may not end yet."""
        return self.history.num_output < self.sampling.min_tokens

    def uniform(self) -> float:
        """The random number of the next output position, see ``uniform``."""
        return uniform(self.seed, self.history.num_output)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability under the unmodified logits."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The token chosen for a row.

    ``logprob`` is None unless the request asks for logprobs. ``top``: as many of the likeliest tokens as it asks for,
    likeliest first, equal ones by lower id; fewer where the model forbids the rest with -inf. The chosen token need
    not be among them.
    """

    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingFailure:
    """No token can be chosen for a row, for its logits are no distribution. The other rows are not affected."""

    reason: str


_DAMAGED = SamplingFailure(
    "the logits are no distribution: NaN, +inf or no token allowed. The model's numbers are damaged or overflow "
    "its dtype; a wider dtype may help."
)


def uniform(seed: int, position: int) -> float:
    """The random number for an output position of a request: 0 <= number < 1, a multiple of 2**-53.

    A pure function, ``hash64(domain, seed, position)``: there is no generator whose state could be lost.
    """
    return (hash64(_DRAWS, seed, position) >> 11) * 2.0**-53


def sample(logits: Tensor, rows: Sequence[SamplerRow]) -> list[SampledToken | SamplingFailure]:
    """Choose the next token of each row. Changes neither the logits nor the histories.

    Rows that are plainly greedy cost one argmax over the batch. Others are copied in float32 and are worked on
    together, but for bias and penalties, which are applied row by row to the tokens concerned.

    Args:
        logits: [rows, vocab], any floating dtype and device; -inf forbids a token.
        rows: one per row of ``logits``.

    Returns:
        One result per row, in order. A row gets a ``SamplingFailure`` if its logits contain NaN or +inf, forbid each
        token, or exceed float32 after its options: a damaged row must fail its request, never the batch.

    Raises:
        ConfigError: the shapes don't agree, the dtype is not a floating one, or vocab exceeds MAX_VOCABULARY.
    """
    _check_shapes(logits, rows)
    if not rows:
        return []
    tokens = _best(logits)
    special = [i for i, row in enumerate(rows) if not row.is_plain and isinstance(tokens[i], int)]
    if special:
        chosen = _choose(_take(logits, special), [rows[i] for i in special])
        for i, token in zip(special, chosen, strict=True):
            tokens[i] = token
    return _results(logits, rows, tokens)


def probabilities(logits: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
    """The distributions that ``sample`` draws from: [rows, vocab] in float64, each row summing to 1.

    A greedy row has a single 1. For tests, and for accepting drafted tokens. Arguments and errors as of ``sample``.
    A row for which ``sample`` gives a SamplingFailure is all NaN.
    """
    _check_shapes(logits, rows)
    result = torch.full(logits.shape, torch.nan, dtype=torch.float64, device=logits.device)
    if not rows:
        return result
    edited = _take(logits, range(len(rows)))
    failed = restrict(edited, rows)
    for i, token in enumerate(_best(_edit(edited, rows))):
        if isinstance(token, int) and i not in failed:
            result[i] = 0.0
            _distribution(result[i], edited[i : i + 1], rows[i], token)
    return result


def _distribution(result: Tensor, edited: Tensor, row: SamplerRow, best: int) -> None:
    """Write a row's probabilities into ``result`` [vocab], all 0 before; ``edited`` is [1, vocab]."""
    if row.sampling.is_greedy:
        result[best] = 1.0
        return
    kept = _candidates(edited, [row])
    result[kept.ids[0]] = kept.weights[0].to(torch.float64) / kept.weights[0].sum()


def _check_shapes(logits: Tensor, rows: Sequence[SamplerRow]) -> None:
    if logits.dim() != 2 or logits.shape[0] != len(rows) or not logits.is_floating_point():
        raise ConfigError(
            f"logits must be [rows, vocab] of a floating dtype with one row for each of {len(rows)} requests, "
            f"not {list(logits.shape)} of {logits.dtype}."
        )
    if not 1 <= logits.shape[1] <= MAX_VOCABULARY:
        raise ConfigError(f"vocab must be from 1 to {MAX_VOCABULARY}, not {logits.shape[1]}.")


def _take(logits: Tensor, indices: Sequence[int]) -> Tensor:
    """A float32 copy of some rows, [len(indices), vocab]."""
    return logits.index_select(0, torch.tensor(list(indices), device=logits.device)).to(torch.float32, copy=False)


def _best(logits: Tensor) -> list[int | SamplingFailure]:
    """The token of each row's highest logit, a failure where that is NaN or infinite."""
    return [_DAMAGED if token is None else token for token in highest(logits)]


def _choose(logits: Tensor, rows: Sequence[SamplerRow]) -> list[int | SamplingFailure]:
    """Tokens of rows with options; a failure where these leave no distribution. ``logits`` is overwritten."""
    reasons = restrict(logits, rows)
    tokens = _best(_edit(logits, rows))
    for i, reason in reasons.items():
        tokens[i] = SamplingFailure(reason)
    random = [i for i, row in enumerate(rows) if not row.sampling.is_greedy and isinstance(tokens[i], int)]
    for is_truncated in (False, True):  # apart, for only truncated rows need their tokens ranked
        group = [i for i in random if _is_truncated(rows[i].sampling) is is_truncated]
        if group:
            drawn = _draw(_candidates(_take(logits, group), [rows[i] for i in group]), [rows[i] for i in group])
            for i, token in zip(group, drawn, strict=True):
                tokens[i] = token
    return tokens


def _is_truncated(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1.0


def _edit(logits: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
    """Apply bias and penalties in place, steps 1 to 3. [rows, vocab] float32"""
    for i, row in enumerate(rows):
        if row.sampling.logit_bias:
            _add_bias(logits[i], row.sampling)
        if row.sampling.has_penalties:
            _penalise(logits[i], row.sampling, row.history)
    return logits


def _add_bias(logits: Tensor, sampling: Sampling) -> None:
    ids = torch.tensor(list(sampling.logit_bias), device=logits.device)
    logits[ids] += torch.tensor(list(sampling.logit_bias.values()), dtype=logits.dtype, device=logits.device)


def _penalise(logits: Tensor, sampling: Sampling, history: TokenCounts) -> None:
    is_known = history.ids < logits.shape[0]  # a prompt may hold placeholders (of images) that have no logit
    ids = torch.from_numpy(history.ids[is_known]).to(logits.device)
    counts = torch.from_numpy(history.counts[is_known]).to(logits.device)
    seen = logits[ids]
    r = sampling.repetition_penalty
    seen = torch.where(seen < 0, seen * r, seen / r)
    seen -= sampling.presence_penalty * (counts > 0) + sampling.frequency_penalty * counts
    logits[ids] = seen


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The tokens that may be drawn: ``ids`` and ``weights`` [rows, width] in int64, weight 0 where a token may not."""

    ids: Tensor
    weights: Tensor


def _candidates(logits: Tensor, rows: Sequence[SamplerRow]) -> _Candidates:
    """Steps 4 to 7 for rows of which all or none are truncated."""
    weights = _weights(logits, rows)
    if not _is_truncated(rows[0].sampling):
        return _Candidates(torch.arange(logits.shape[1], device=logits.device).expand_as(weights), weights)
    vocab = logits.shape[1]
    width = max(min(row.sampling.top_k or _NUCLEUS_WIDTH, vocab) for row in rows)
    kept = _truncate(weights, rows, width)
    while kept is None:  # ends: the whole vocabulary has all probability
        width = min(width * 8, vocab)
        kept = _truncate(weights, rows, width)
    return kept


def _weights(logits: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
    """Probabilities relative to the likeliest token's, which has _UNIT. [rows, vocab] int64"""
    exact = logits.to(torch.float64)
    exact -= exact.amax(dim=-1, keepdim=True)  # before the division, so that no temperature overflows
    exact /= _column(rows, lambda sampling: sampling.temperature, exact)
    ratio = exact.exp_()
    ratio.masked_fill_(ratio < _column(rows, lambda sampling: sampling.min_p, ratio), 0.0)
    return ratio.mul_(_UNIT).round_().to(torch.int64)


def _truncate(weights: Tensor, rows: Sequence[SamplerRow], width: int) -> _Candidates | None:
    """Apply top_k and top_p to the first ``width`` tokens of each row; None if a row would keep more of them."""
    ranked = _rank(weights, width)
    vocab = weights.shape[1]
    top_k = _column(rows, lambda sampling: min(sampling.top_k or vocab, vocab), weights)
    kept = ranked.weights * (torch.arange(width, device=weights.device) < top_k)
    total = torch.where(top_k < vocab, kept.sum(dim=-1, keepdim=True), weights.sum(dim=-1, keepdim=True))
    enough = total.to(torch.float64) * _column(rows, lambda sampling: sampling.top_p, total.to(torch.float64))
    sums = kept.cumsum(dim=-1)
    if (sums[:, -1:] < enough).any():
        return None
    kept *= (sums - kept).to(torch.float64) < enough
    return _Candidates(ranked.ids, kept)


def _rank(weights: Tensor, width: int) -> _Candidates:
    """The first ``width`` tokens of each row by higher weight, then lower id: [rows, width].

    Both are packed in one integer, so that no two are equal and topk has no choice; it is far faster than sorting all.
    """
    ids = torch.arange(weights.shape[1], device=weights.device)
    keys = ((weights << 22) | (_ID_MASK - ids)).topk(width, dim=-1).values
    return _Candidates(ids=_ID_MASK - (keys & _ID_MASK), weights=keys >> 22)


def _draw(candidates: _Candidates, rows: Sequence[SamplerRow]) -> list[int]:
    """Invert each row's cumulative distribution at its uniform number."""
    sums = candidates.weights.cumsum(dim=-1)
    total = sums[:, -1:]
    numbers = torch.tensor([[row.uniform()] for row in rows], dtype=torch.float64, device=total.device)
    target = (numbers * total.to(torch.float64)).to(torch.int64)  # below total, for a number is at most 1 - 2**-53
    place = torch.searchsorted(sums, target, right=True)  # the first with a sum above: its weight is not 0
    tokens: list[int] = candidates.ids.gather(-1, place).squeeze(-1).tolist()
    return tokens


def _column(rows: Sequence[SamplerRow], option: Callable[[Sampling], float], like: Tensor) -> Tensor:
    """An option of each row, [rows, 1], of the dtype and on the device of ``like``."""
    return torch.tensor([[option(row.sampling)] for row in rows], dtype=like.dtype, device=like.device)


def _results(
    logits: Tensor, rows: Sequence[SamplerRow], tokens: Sequence[int | SamplingFailure]
) -> list[SampledToken | SamplingFailure]:
    results = [SampledToken(token) if isinstance(token, int) else token for token in tokens]
    asking = [i for i, row in enumerate(rows) if row.sampling.logprobs is not None]
    asking = [i for i in asking if isinstance(results[i], SampledToken)]
    if asking:
        raw = _take(logits, asking)
        logprobs = raw.log_softmax(dim=-1)
        for place, i in enumerate(asking):
            results[i] = _report(tokens[i], raw[place], logprobs[place], rows[i].sampling.logprobs)
    return results


def _report(token: int | SamplingFailure, raw: Tensor, logprobs: Tensor, num_top: int | None) -> SampledToken:
    """The result with log-probabilities; ``raw`` and ``logprobs`` are the row's, [vocab] float32."""
    assert isinstance(token, int)
    assert num_top is not None
    top = likeliest(raw[None], num_top)[0]
    return SampledToken(token, float(logprobs[token]), alternatives(top.tolist(), logprobs[top].tolist()))


def alternatives(ids: Sequence[int], logprobs: Sequence[float]) -> tuple[TokenLogprob, ...]:
    """The likeliest tokens as they are reported, without those that the model forbids."""
    each = zip(ids, logprobs, strict=True)
    return tuple(TokenLogprob(token, logprob) for token, logprob in each if logprob > -np.inf)


def likeliest(logits: Tensor, count: int) -> Tensor:
    """Ids of the ``count`` highest of each row, or of all; the highest first, equal ones by lower id.

    ``logits``: [rows, vocab] float32 without NaN. As in ``_rank``, value and id are packed so that no two are equal:
    the bits of a float, read as an integer, are in its order once those of a negative one are turned round.
    """
    bits = (logits + 0.0).view(torch.int32)  # -0.0 becomes 0.0, which it equals
    order = torch.where(bits < 0, bits ^ 0x7FFF_FFFF, bits).to(torch.int64)
    ids = torch.arange(logits.shape[1], device=logits.device)
    keys = ((order << 22) | (_ID_MASK - ids)).topk(min(count, logits.shape[1]), dim=-1).values
    return _ID_MASK - (keys & _ID_MASK)
