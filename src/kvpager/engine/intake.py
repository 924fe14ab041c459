"""What comes in: prompts become token ids, and a request that can never run is refused before it is queued.

Knows the model's limits and its tokenizer, no queue and no cache.
"""

from array import array
from collections.abc import Sequence as List
from random import Random

from kvpager.cache.sequence import token_array
from kvpager.config import Options
from kvpager.config.attend import EXACT, Attend, most_kept
from kvpager.engine.block_needs import blocks_of_request, slow_share
from kvpager.engine.detokenizer import Detokenizer
from kvpager.engine.guide import Guide
from kvpager.engine.prompt_logprobs import PromptScores
from kvpager.engine.request import Branch, BranchState, Request
from kvpager.engine.sampling import SamplerRow
from kvpager.engine.sampling_params import Sampling
from kvpager.engine.setup import EngineParts
from kvpager.engine.token_counts import TokenCounts
from kvpager.engine.token_texts import TokenTexts
from kvpager.errors import ConfigError, RequestError

Prompt = str | List[int]

_CONTEXT_TOKENS = 6  # of the prompt, for the detokenizer


class Intake:
    def __init__(self, parts: EngineParts, options: Options) -> None:
        self._parts = parts
        self._options = options
        self._next_branch = 0
        self._texts = None if parts.tokenizer is None else TokenTexts(parts.tokenizer)
        self._random = Random(options.seed)

    def encode(self, prompt: Prompt) -> "array[int]":
        """Token ids of a prompt. Texts go through the tokenizer, with its special tokens."""
        if isinstance(prompt, str):
            if self._parts.tokenizer is None:
                raise ConfigError("this model has no tokenizer: give token ids")
            ids: List[int] = self._parts.tokenizer.encode(prompt)
        else:
            ids = prompt
        try:
            return token_array(ids)
        except ConfigError as error:
            raise RequestError(f"the prompt can't be used: {error}") from None

    def longest(self, attend: Attend) -> int:
        """Tokens that a request may have: more than fit where it gives pages back."""
        limits, kept = self._parts.limits, most_kept(attend)
        context = self._parts.longest_context
        if kept is None or blocks_of_request(limits, context, 1, context, kept) > self._parts.cache.pool.num_blocks:
            return self._parts.max_request_tokens
        return context

    def check(self, ids: "array[int]", sampling: Sampling, attend: Attend = EXACT) -> int:
        """How long it may get. Raises RequestError, with the limit, for a request that can never run."""
        parts, layout = self._parts, self._parts.limits.layout
        if len(ids) == 0:
            raise RequestError("the prompt has no tokens; give at least one")
        if max(ids) >= parts.vocab_size:
            raise RequestError(f"token id {max(ids)} is not in the vocabulary (0 to {parts.vocab_size - 1})")
        sampling.check_vocabulary(parts.vocab_size)
        if sampling.stop and parts.tokenizer is None:
            raise RequestError("stop strings need a tokenizer; use stop_token_ids")
        longest = self.longest(attend)
        if len(ids) > longest:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, but at most {longest} fit (model context "
                f"{parts.max_context}, pool {parts.cache.pool.num_blocks} blocks of "
                f"{layout.page_size} tokens over {layout.num_groups} layer groups; {parts.below})"
            )
        slow = parts.limits.slow
        needs = blocks_of_request(parts.limits, len(ids), sampling.max_tokens, longest, most_kept(attend))
        if slow is not None and needs > slow.num_blocks:
            keeps = slow_share(slow, layout.num_groups, kept=0, width=sampling.n)
            if keeps < slow.least:
                raise RequestError(
                    f"each of n={sampling.n} choices that do not fit needs {slow.least} blocks of the pool, but may "
                    f"keep {keeps}: ask for fewer choices, or raise the capacity"
                )
            if needs - keeps > slow.num_below:
                raise RequestError(
                    f"each of n={sampling.n} choices needs {needs} blocks, but may keep {keeps}, and the tiers below "
                    f"hold {slow.num_below}: ask for fewer choices or tokens, or enlarge a tier"
                )
        if parts.cache.runs is not None and (needs > parts.cache.pool.num_blocks or sampling.n > 1):
            raise RequestError(
                f"{self._options.allocation} allocation reserves {needs} blocks in a row for each of n={sampling.n} "
                f"choices, of a pool of {parts.cache.pool.num_blocks}, and can't fork: ask for one choice of fewer "
                "tokens, raise the capacity, or use paged allocation"
            )
        if sampling.n > self._options.max_running:
            raise RequestError(f"n={sampling.n} choices run together, but max_running is {self._options.max_running}")
        return longest

    def check_all(
        self, prompts: List[Prompt], sampling: Sampling | List[Sampling], attend: Attend = EXACT
    ) -> list["array[int]"]:
        """The token ids of a list of prompts, each of which can run."""
        each = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
        if len(each) != len(prompts):
            raise ConfigError(f"{len(prompts)} prompts need as many sampling options, or one for all, not {len(each)}")
        encoded = [self.encode(prompt) for prompt in prompts]
        for ids, own in zip(encoded, each, strict=True):
            self.check(ids, own, attend)
        return encoded

    def add_branches(self, request: Request, guide: Guide | None = None) -> None:
        """One branch per choice: the first waits, the others are forked from it. ``guide``: each has a fork of it."""
        ids, sampling = request.prompt, request.sampling
        if sampling.prompt_logprobs is not None:
            request.scores = PromptScores(ids, sampling.prompt_logprobs)
        end_tokens = frozenset(token for token in self._parts.end_tokens if token < self._parts.vocab_size)
        seed = self._random.getrandbits(64) if sampling.seed is None else None
        for choice in range(sampling.n):
            own = sampling.child(choice)
            drawn = own.seed if own.seed is not None else (seed or 0) + choice
            history = TokenCounts(ids if own.has_penalties else ())
            detokenizer = None
            if self._texts is not None:
                detokenizer = Detokenizer(self._texts, own.stop, context=ids[-_CONTEXT_TOKENS:].tolist())
            fork = None if guide is None else guide.fork()
            row = SamplerRow(sampling=own, history=history, seed=drawn, end_tokens=end_tokens, guide=fork)
            state = BranchState.FORKING if choice else BranchState.WAITING
            request.branches.append(Branch(request, choice, self._next_branch, row, detokenizer, state))
            self._next_branch += 1
