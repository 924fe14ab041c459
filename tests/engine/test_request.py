"""A request's branches: their states, and what is said of them when they end."""

from array import array

import pytest

from kvpager.engine.request import Branch, BranchState, FinishReason, Request, completion
from kvpager.engine.sampling import SampledToken, SamplerRow
from kvpager.engine.sampling_params import Sampling
from kvpager.engine.token_counts import TokenCounts
from kvpager.errors import InvariantError
from kvpager.prefix.hashing import Scope
from kvpager.types import TierKind

LEGAL = {
    ("waiting", "running"),
    ("waiting", "finished"),
    ("forking", "running"),
    ("forking", "finished"),
    ("running", "waiting"),
    ("running", "finished"),
}


def request_of(prompt: list[int], n: int = 1, index: int = 0) -> Request:
    request = Request(7, index, array("i", prompt), Sampling(n=n), 0, Scope(), 100)
    for choice in range(n):
        state = BranchState.FORKING if choice else BranchState.WAITING
        row = SamplerRow(sampling=request.sampling.child(choice), history=TokenCounts(()))
        request.branches.append(Branch(request, choice, 40 + choice, row, None, state))
    return request


@pytest.mark.parametrize("source", BranchState)
@pytest.mark.parametrize("target", BranchState)
def test_a_branch_moves_only_along_the_drawn_arrows(source: BranchState, target: BranchState) -> None:
    branch = request_of([1]).branches[0]
    branch.state = source
    if (source.value, target.value) in LEGAL:
        branch.move(target)
        assert branch.state is target
    else:
        with pytest.raises(InvariantError, match=f"is {source.value} and can't become {target.value}"):
            branch.move(target)
        assert branch.state is source


def test_known_tokens_are_the_prompt_and_the_output() -> None:
    branch = request_of([1, 2, 3]).branches[0]
    assert (branch.num_known, branch.known_tokens()) == (3, array("i", [1, 2, 3]))
    branch.output.append(9)
    assert (branch.num_known, branch.known_tokens()) == (4, array("i", [1, 2, 3, 9]))
    assert branch.request.prompt == array("i", [1, 2, 3])


def test_a_request_has_finished_when_all_its_choices_have() -> None:
    request = request_of([1], n=2)
    for branch in request.branches:
        assert not request.is_finished
        branch.move(BranchState.FINISHED)
    assert request.is_finished


def test_a_branch_that_has_not_finished_has_no_completion() -> None:
    request = request_of([1], n=2)
    with pytest.raises(InvariantError, match="branch 40 has not finished"):
        request.completions()


def test_a_completion_tells_what_has_come_of_each_choice() -> None:
    request = request_of([1, 2, 3], n=2, index=5)
    first, second = request.branches
    first.output, first.text, first.logprobs = [8, 9], ["a", "", "b"], [SampledToken(8, -1.0), SampledToken(9, -2.0)]
    first.prefix_by_tier = {TierKind.DEVICE: 1, TierKind.DISK: 1}
    first.preemptions, first.finish_reason = 3, FinishReason.STOP
    second.finish_reason, second.error = FinishReason.ERROR, "it broke"
    done = completion(first)
    assert (done.request_id, done.index, done.choice) == (7, 5, 0)
    assert (done.text, done.token_ids, done.finish_reason) == ("ab", (8, 9), FinishReason.STOP)
    assert (done.prompt_tokens, done.prefix_tokens, done.preemptions, done.error) == (3, 2, 3, "")
    assert done.prefix_by_tier == {TierKind.DEVICE: 1, TierKind.DISK: 1}
    assert done.logprobs == (SampledToken(8, -1.0), SampledToken(9, -2.0))
    failed = completion(second)
    assert (failed.choice, failed.error, failed.token_ids, failed.prefix_tokens) == (1, "it broke", (), 0)
    assert request.completions() == [done, failed]
