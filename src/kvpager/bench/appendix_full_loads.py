"""The five rows of the description's appendix C, and the requests that stand for them. Knows no server and no engine.

The description gives requests at once, a context, and two rates; not its model, hardware, or how long requests were.
Here they are as long as those of Azure's conversation trace, all made longer or shorter alike:

    trace    so that the trace's longest request, 14,089 tokens, fills the row's context; the mean fills a tenth
    narrow   so that its 95th percentile, 4,136 tokens, does, and what is longer is cut; the mean fills a third
    full     every request fills its context, and paging has nothing to gain but what it shares

Concurrency is sustained: behind each of the requests that run at once others wait. Row 5 is ten requests that fill
their context.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvpager.bench.report import SEED
from kvpager.bench.workload_lengths import azure_lengths
from kvpager.errors import ConfigError
from kvpager.simulator.service_simulation import ServiceRequest

_FILLS = {"trace": 14_089, "narrow": 4_136}  # tokens of the trace that fill a context
LENGTHS = (*_FILLS, "full")
FULL_OUTPUT = 256  # tokens of a request that fills its context


@dataclass(frozen=True, slots=True)
class AppendixRow:
    """``requests`` at once, each of up to ``context`` tokens; tokens a second that the description gives, None where it
    says that contiguous allocation ran out of memory."""

    number: int
    requests: int
    context: int
    described_contiguous: float | None
    described_paged: float

    @property
    def described_ratio(self) -> float | None:
        return self.described_paged / self.described_contiguous if self.described_contiguous else None


ROWS = (
    AppendixRow(1, 1000, 4096, 120, 480),
    AppendixRow(2, 500, 16384, 80, 320),
    AppendixRow(3, 100, 65536, 40, 200),
    AppendixRow(4, 50, 131072, 20, 120),
    AppendixRow(5, 10, 1 << 20, None, 60),
)


def requests_of(row: AppendixRow, lengths: str = "trace", rounds: int = 1) -> list[ServiceRequest]:
    """``rounds`` times as many as run at once, all there at the start; the same for the same arguments."""
    count = rounds * row.requests
    if lengths == "full":
        output = min(FULL_OUTPUT, row.context // 8)
        return [ServiceRequest(row.context - output + 1, output)] * count
    if lengths not in _FILLS:
        raise ConfigError(f"unknown lengths {lengths!r}; there are {', '.join(LENGTHS)}")
    table = azure_lengths()
    drawn = np.random.default_rng(SEED).integers(0, len(table), count).tolist()
    part = row.context / _FILLS[lengths]
    return [_fitted(prompt, output, row.context, part) for prompt, output in (table[at] for at in drawn)]


def mean_share(requests: Sequence[ServiceRequest], context: int) -> float:
    """Of a context, that a request fills in the mean."""
    return float(np.mean([request.final for request in requests])) / context


def _fitted(prompt: int, output: int, context: int, part: float) -> ServiceRequest:
    part = min(part, (context - 1) / (prompt + output))
    return ServiceRequest(max(1, int(prompt * part)), max(1, int(output * part)))
