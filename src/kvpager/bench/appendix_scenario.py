"""Rows 1 to 5 of the description's appendix C, made small enough for this machine. One rule for all of them.

The server meant: one accelerator of 80 GB (section 3.6) with 64 GB for K and V (80 %, appendix B) of a model of 8B
parameters, 131,072 bytes a token: 488,281 tokens. Contiguous allocation fits 119, 29, 7 and 3 contexts of rows 1 to 4
into that, and none of row 5, which the description says ran out of memory.

    contexts    of rows 1 to 4 become 2,048 tokens (row 1 divided by 2, row 4 by 64), of row 5 1,024: what a few minutes
                can compute
    pages       16 tokens, half of the default, as row 1's context is half of its own
    memory      exactly one such context (row 5: 0.47 of one, as on that server)
    requests    at once: divided by the same number as the memory, counted in contexts; so the memory is wanted as
                many times over as there: 8, 17, 13, 13 times; others wait behind these
    lengths     of Azure's conversation trace, all shortened alike until its longest request fills the context
    prompts     two forms of the same lengths: ``prompt-heavy``, split as the trace is, about 5 tokens of prompt to one
                of answer; ``generation-heavy``, split as ShareGPT's conversations, one token of prompt to 2 of answer

Which split is the description's, it does not say: docs/appendix-c.md says why the figures that have targets are
prompt-heavy.

One context is the least memory with which the contiguous server runs at all. On a CPU a handful of streams turn a step
from reading weights into arithmetic, on an accelerator some hundreds: with more memory, both servers would compute as
fast as the machine can (``appendix_c_row1_decode_vs_contiguous/4_contexts`` shows it). Requests share nothing.
"""

from dataclasses import dataclass, replace

import numpy as np

from kvpager.bench.appendix_full_loads import ROWS, AppendixRow, requests_of
from kvpager.bench.report import SEED
from kvpager.bench.workloads import Ask

SERVER_TOKENS = 64 * 10**9 // 131_072
PAGE_SIZE = 16
GENERATION_HEAVY = 338 / (161 + 338)  # answers' share of ShareGPT's tokens (paper on PagedAttention, figure 11)
_FULL_OUTPUT = 32  # tokens of a request that fills its context (row 5)


@dataclass(frozen=True, slots=True)
class ScaledRow:
    """``at_once`` requests of up to ``context`` tokens, ``memory_tokens`` for their K and V."""

    number: int
    at_once: int
    context: int
    memory_tokens: int
    row: AppendixRow

    def num_blocks(self, page_size: int = PAGE_SIZE) -> int:
        return self.memory_tokens // page_size

    def asks(self, count: int, vocab: int, answer_share: float | None = None) -> tuple[Ask, ...]:
        """``count`` requests, all there at the start. The same for the same arguments. ``answer_share``: of their
        tokens, that they generate; None: as in the trace. Ids at both ends of the vocabulary, where special tokens
        are, are left out."""
        draw, left_out = np.random.default_rng(SEED + self.number), vocab // 32
        if self.memory_tokens < self.context:
            lengths = [(self.context - _FULL_OUTPUT + 1, _FULL_OUTPUT)] * count
        else:
            found = requests_of(replace(self.row, requests=count, context=self.context))
            lengths = [_split(each.prompt, each.output, answer_share) for each in found]
        return tuple(
            Ask(tuple(draw.integers(left_out, vocab - left_out, prompt).tolist()), output) for prompt, output in lengths
        )


def _split(prompt: int, output: int, answer_share: float | None) -> tuple[int, int]:
    if answer_share is None:
        return prompt, output
    whole = prompt + output
    output = min(whole - 1, max(1, round(answer_share * whole)))
    return whole - output, output


def scaled_row(number: int, context: int, contexts: int = 1) -> ScaledRow:
    """Row ``number`` with contexts of so many tokens, and memory for so many of them (rows 1 to 4)."""
    row = ROWS[number - 1]
    share = SERVER_TOKENS / row.context  # contexts that the server has memory for
    if share < 1:
        return ScaledRow(number, row.requests, context, int(share * context), row)
    return ScaledRow(number, round(row.requests / share * contexts), context, contexts * context, row)
