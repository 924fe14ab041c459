"""What a sampled token does to its branch: it becomes output and text, and may be the last one. Frees nothing."""

from dataclasses import dataclass

from kvpager.engine.request import Branch, FinishReason
from kvpager.engine.sampling import SampledToken, SamplingFailure


@dataclass(frozen=True, slots=True)
class Taken:
    """``text``: what became certain with the token. ``ended``: why the branch goes no further; None: it goes on.
    ``error``: says more where that is an error."""

    text: str = ""
    ended: FinishReason | None = None
    error: str = ""


_GOES_ON = Taken()


def take(branch: Branch, result: SampledToken | SamplingFailure | None) -> Taken:
    """Adds a token to a running branch. None: it asked for none."""
    if result is None:
        return Taken(ended=FinishReason.LENGTH)
    if isinstance(result, SamplingFailure):
        return Taken(ended=FinishReason.ERROR, error=result.reason)
    sampling, token = branch.sampler.sampling, result.token
    branch.output.append(token)
    branch.running_sequence.append(token)
    branch.sampler.history.append(token)
    if sampling.logprobs is not None:
        branch.logprobs.append(result)
    if token in branch.sampler.ends:
        return Taken(ended=FinishReason.STOP)
    guide, is_complete = branch.sampler.guide, False
    if guide is not None:
        try:
            guide.accept(token)
            is_complete = guide.is_complete
        except Exception as error:  # it is the client's, and this is its own choice's end
            return Taken("", FinishReason.ERROR, f"the guide of its text failed: {error}")
    text = ""
    if branch.detokenizer is not None:
        try:
            delta = branch.detokenizer.push(token, may_end=not branch.sampler.must_go_on)
        except Exception as error:  # a tokenizer that does not know all of the model's tokens
            return Taken("", FinishReason.ERROR, f"the tokenizer can't decode token {token}: {error}")
        text = delta.text
        branch.text.append(text)
        if delta.finished_by is not None:
            return Taken(text, FinishReason.STOP)
    if is_complete:
        return Taken(text, FinishReason.STOP)
    if len(branch.output) >= sampling.max_tokens or branch.num_known > branch.request.limit:
        return Taken(text, FinishReason.LENGTH)
    return Taken(text) if text else _GOES_ON
