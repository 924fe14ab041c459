"""What a sampled token does to its branch: it becomes output and text, and may be the last one. Frees nothing."""

from collections.abc import Collection
from dataclasses import dataclass

from kvpager.engine.request import Branch, FinishReason
from kvpager.engine.sampling import SampledToken, SamplingFailure


@dataclass(frozen=True, slots=True)
class Taken:
    """``sampled``: the token, unless there was none. ``text``: what became certain with it. ``ended``: why the branch
    goes no further; None: it goes on. ``error``: says more where that is an error."""

    sampled: SampledToken | None
    text: str = ""
    ended: FinishReason | None = None
    error: str = ""


def take(branch: Branch, result: SampledToken | SamplingFailure, end_tokens: Collection[int]) -> Taken:
    """Adds a token to a running branch. ``end_tokens``: the model's own."""
    if isinstance(result, SamplingFailure):
        return Taken(None, ended=FinishReason.ERROR, error=result.reason)
    sampling, token = branch.sampler.sampling, result.token
    branch.output.append(token)
    branch.running_sequence.append(token)
    branch.sampler.history.append(token)
    if sampling.logprobs is not None:
        branch.logprobs.append(result)
    if token in sampling.stop_token_ids or (token in end_tokens and not sampling.ignore_eos):
        return Taken(result, ended=FinishReason.STOP)
    text = ""
    if branch.detokenizer is not None:
        try:
            delta = branch.detokenizer.push(token)
        except Exception as error:  # a tokenizer that does not know all of the model's tokens
            return Taken(result, "", FinishReason.ERROR, f"the tokenizer can't decode token {token}: {error}")
        text = delta.text
        branch.text.append(text)
        if delta.finished_by is not None:
            return Taken(result, text, FinishReason.STOP)
    is_full = len(branch.output) >= sampling.max_tokens or branch.num_known > branch.request.limit
    return Taken(result, text, FinishReason.LENGTH if is_full else None)
