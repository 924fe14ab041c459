"""How much ``kvpager bench demand`` measures."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DemandScale:
    """The names of figures speak of the sizes that are the defaults here.

    ``seconds``: per comparison, and at least ``rounds`` rounds. ``context``, ``layers``: of the sequence in memory.
    ``disk_context``, ``disk_layers``: of what exact attention streams from the disk, whose rate is a tenth of the
    memory's. ``selective_layers``: of ``context`` tokens on the disk, for the comparison with selective attention.
    ``page_size``: tokens a page of all exact cases, and of the selective ones that have a target; ``small_page_size``:
    of the others. ``budget``: tokens of selective attention. ``table_context``: tokens of the page table. ``faults``:
    pages whose faults are timed. ``neighbours``: ordinary requests that decode ``neighbour_tokens`` each beside an
    oversized one.
    """

    seconds: float = 8.0
    rounds: int = 7
    context: int = 131072
    layers: int = 2
    disk_context: int = 32768
    disk_layers: int = 2
    selective_layers: int = 1
    page_size: int = 64
    small_page_size: int = 16
    budget: int = 4096
    table_context: int = 1 << 20
    faults: int = 256
    neighbours: int = 4
    neighbour_tokens: int = 128
    oversized_prompt: int = 4096


FULL = DemandScale()
QUICK = DemandScale(seconds=0.5, rounds=3, layers=1, disk_layers=1, faults=64, oversized_prompt=2048)
