"""Appendix C at full scale, by simulation: stated hardware, real lengths, and a server as discrete events.

Nothing here runs on such hardware. The costs are data sheets times assumed shares (simulator/service_hardware.py); how
far the same simulation is from real runs on this machine, with costs fitted to them, is ``simulation_error/..``
(appendix_full_calibration.py). Only memory management differs between the regimes: same costs, same limits.

    8b, 70b    Llama 3.1 8B on one H200, 70B on two, prompts and answers served together
    .._decode  prompts are computed elsewhere, as where prefill and decode are served by different machines
    .._narrow, .._full   other lengths (appendix_full_loads.py)
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvpager.bench.appendix_full_loads import ROWS, AppendixRow, requests_of
from kvpager.bench.report import Result
from kvpager.simulator.service_hardware import (
    H200,
    H200_PAIR,
    LLAMA_8B,
    LLAMA_70B,
    Hardware,
    ServedModel,
    costs_of,
    kv_capacity,
)
from kvpager.simulator.service_memory import REGIMES, make_memory
from kvpager.simulator.service_simulation import ServerLimits, ServiceRequest, ServiceResult, simulate

PAGE_SIZE = 16
MAX_BATCH_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Setting:
    """``rows`` of the appendix, by number."""

    name: str
    hardware: Hardware
    model: ServedModel
    lengths: str = "trace"
    is_prompt_computed: bool = False
    rows: tuple[int, ...] = (1, 2, 3, 4)


SETTINGS = (
    Setting("8b", H200, LLAMA_8B, rows=(1, 2, 3, 4, 5)),
    Setting("70b", H200_PAIR, LLAMA_70B, rows=(1, 2, 3, 4, 5)),
    Setting("8b_decode", H200, LLAMA_8B, is_prompt_computed=True, rows=(1, 2, 3, 4, 5)),
    Setting("70b_decode", H200_PAIR, LLAMA_70B, is_prompt_computed=True, rows=(1, 2, 3, 4, 5)),
    Setting("70b_narrow", H200_PAIR, LLAMA_70B, lengths="narrow"),
    Setting("70b_decode_narrow", H200_PAIR, LLAMA_70B, lengths="narrow", is_prompt_computed=True),
    Setting("70b_full", H200_PAIR, LLAMA_70B, lengths="full", rows=(4,)),
)
_MAIN = ("8b", "70b")  # of which more than the ratio is shown


def measure(quick: bool = False) -> list[Result]:
    results = list(_described())
    for setting in SETTINGS:
        for number in setting.rows:
            row = ROWS[number - 1]
            rounds = 1 if row.described_contiguous is None else 2 if quick else 4
            results += _row(setting, row, rounds)
    return results


def stated() -> str:
    """The hardware and what is assumed of it, in one line."""
    parts = []
    for hardware, model in ((H200, LLAMA_8B), (H200_PAIR, LLAMA_70B)):
        tokens = kv_capacity(hardware, model)
        parts.append(f"{model.name} in bf16 on {hardware.name} with memory for {tokens:,} tokens of K and V")
    h = H200
    return (
        f"simulated: {', '.join(parts)} ({h.source}; assumed to be reached: {h.bandwidth_share:.0%} of the bandwidth, "
        f"{h.arithmetic_share:.0%} of the arithmetic, {h.attention_share:.0%} in attention, {h.link_share:.0%} of the "
        f"link, {h.memory_share:.0%} of the memory)"
    )


def _described() -> Iterator[Result]:
    for row in ROWS:
        if row.described_ratio is not None:
            yield Result(f"appendix_c_described_row{row.number}_vs_contiguous", row.described_ratio, "ratio")
        yield Result(f"appendix_c_described_row{row.number}/paged", row.described_paged, "tokens/s")


def serve(setting: Setting, requests: list[ServiceRequest], row: AppendixRow, regime: str) -> ServiceResult:
    """The requests of a row under one regime. Only pages can lie in the host's memory, and only in a row whose requests
    the device can't hold one by one."""
    hardware, model = setting.hardware, setting.model
    capacity = kv_capacity(hardware, model)
    below = 0 if row.context <= capacity else int(hardware.host_memory // model.kv_bytes)
    memory = make_memory(regime, capacity, page_size=PAGE_SIZE, longest=row.context, below=below)
    limits = ServerLimits(row.requests, MAX_BATCH_TOKENS, setting.is_prompt_computed)
    return simulate(requests, memory, costs_of(hardware, model), limits)


def _row(setting: Setting, row: AppendixRow, rounds: int) -> Iterator[Result]:
    is_oversized = row.described_contiguous is None
    requests = requests_of(row, "full" if is_oversized else setting.lengths, rounds)
    found = {regime: serve(setting, requests, row, regime) for regime in REGIMES}
    name, paged = f"appendix_c_simulated_row{row.number}", found["paged"]
    if is_oversized:
        yield Result(f"{name}_runs/{setting.name}", float(paged.completed == len(requests)), "yes=1")
        yield Result(f"{name}_refused_contiguous/{setting.name}", float(found["contiguous"].refused), "requests")
        yield Result(f"{name}/paged/{setting.name}", paged.tokens_per_second, "tokens/s")
        return
    for regime in REGIMES[1:]:
        ratio = paged.tokens_per_second / found[regime].tokens_per_second
        yield Result(f"{name}_vs_{regime}/{setting.name}", ratio, "ratio")
    if setting.name not in _MAIN:
        return
    for regime in REGIMES:
        yield Result(f"{name}/{regime}/{setting.name}", found[regime].tokens_per_second, "tokens/s")
    at_once = paged.mean_running / found["contiguous"].mean_running
    yield Result(f"{name}_concurrency_vs_contiguous/{setting.name}", at_once, "ratio")
    yield Result(f"{name}_waste_share/{setting.name}", paged.waste, "share")
    yield Result(f"{name}_waste_share_contiguous/{setting.name}", found["contiguous"].waste, "share")
