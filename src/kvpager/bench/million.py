"""A million tokens of context over a pool for an eighth of them, the rest on a disk; and ten such sequences at once.

A model with a true range of 1,048,576 positions (random weights, bench/million_model.py) is served by the engine. The
full form computes one whole prompt, which takes hours, and of the others what they do not share with it: the last 4,096
tokens. ``--quick`` leaves most of that out: of one prompt it computes the beginning and the end, as much as some
minutes allow on this machine, and of the others, which share nothing, the last token. The K and V of all other pages
are random numbers; but these are pages like any others, with token ids, content keys and checksums, they lie on the
disk and are attended to. The hardware line says how many tokens that were.

Before anything is timed, the same path is taken with a shorter prompt, and must give the tokens of a run in which all
pages are resident.
"""

import resource
import tempfile
import time
from pathlib import Path

from transformers import LlamaForCausalLM

from kvpager.bench.limits import native_module
from kvpager.bench.million_model import million_model
from kvpager.bench.million_run import Measured, MillionRun
from kvpager.bench.million_scale import FULL, QUICK, MillionScale
from kvpager.bench.million_served import Served
from kvpager.bench.report import Result, report
from kvpager.errors import ConfigError

MEMORY_GIB = 24.0
DISK_GIB = 60.0
QUICK_MINUTES = 30.0


def run(quick: bool = False, folder: str | None = None) -> dict[str, object]:
    """``folder``: where the disk tier is, left as it was (default: the system's temporary folder)."""
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"the folder {folder!r} is not there: make it, or leave --folder out")
    return run_with(million_model(), QUICK if quick else FULL, folder)


def run_with(model: LlamaForCausalLM, scale: MillionScale, folder: str | None = None) -> dict[str, object]:
    module, begin = native_module(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kvpager-bench-", dir=folder) as made:
        million = MillionRun(model, scale, Path(made))
        million.check()
        million.together(million.alone(million.rate()))
    measured = million.measured
    results = [*_rates(measured), *_sizes(measured), *_moved(measured)]
    results += [Result(f"million_seconds/{phase}", seconds, "s") for phase, seconds in measured.seconds.items()]
    minutes = (time.perf_counter() - begin) / 60
    results.append(Result("million_minutes", minutes, "min", at_most=QUICK_MINUTES if scale.is_quick else None))
    return report(
        "million",
        results,
        f"{module.isa()} kernels, {_left_out(million, scale)}",
        checks=["a shorter prompt on the same path gives the tokens of a run in which all pages are resident"],
    )


def _left_out(million: MillionRun, scale: MillionScale) -> str:
    measured = million.measured
    if not measured.by_hand:
        return f"prompts of {million.prompt_tokens:,} tokens, all of them computed or shared"
    return (
        f"prompts of {million.prompt_tokens:,} tokens: of the first one {measured.head:,} tokens at its beginning and "
        f"{measured.tail:,} at its end were computed, of the other {scale.sequences - 1} the last token; "
        f"{measured.by_hand:,} tokens were written by hand"
    )


def _rates(measured: Measured) -> list[Result]:
    found = [
        Result(f"million_decode_rate/{phase}", served.tokens_per_second, "tokens/s")
        for phase, served in measured.served.items()
        if phase != "head"
    ]
    for phase, tokens in (("head", measured.head), ("exact", measured.tail)):
        if tokens and phase in measured.served:
            rate = tokens / measured.served[phase].first
            found.append(Result(f"million_prefill_rate/{'tail' if phase == 'exact' else phase}", rate, "tokens/s"))
    return found


def _sizes(measured: Measured) -> list[Result]:
    exact = measured.served["exact"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return [
        Result("million_page_table_bytes", float(exact.table_bytes), "bytes"),
        Result("million_pages", float(exact.pages), "pages"),
        Result("million_peak_rss", peak / 2**30, "GiB", at_most=MEMORY_GIB),
        Result("million_disk", measured.disk_bytes / 2**30, "GiB", at_most=DISK_GIB),
    ]


def _moved(measured: Measured) -> list[Result]:
    found = []
    for phase, served in measured.served.items():
        if phase != "head":
            found += _faults(phase, served)
    written = sum(tier.stored.bytes for each in measured.statistics for tier in each.tiers)
    return [*found, Result("million_written_to_disk", written / 1e9, "GB")]


def _faults(phase: str, served: Served) -> list[Result]:
    return [
        Result(f"million_major_faults/{phase}", float(served.faults), "pages"),
        Result(f"million_read_from_disk/{phase}", served.bytes / 1e9, "GB"),
        Result(f"million_stalled/{phase}", served.stalled, "s"),
    ]
