"""What a cache of some size would have hit under a policy, replayed from a recorded trace of requests.

'min' is the offline optimum, which knows the future. Shares are of the tokens that it, or LRU, hits; the second half is
where a policy that learns has warmed up.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from kvpager.cli.arguments import add_config, chosen_options, did_you_mean
from kvpager.cli.kv_bytes import kv_bytes_per_token
from kvpager.cli.table import format_table
from kvpager.errors import ConfigError

if TYPE_CHECKING:
    from kvpager.simulator.comparison import Asked, Row
    from kvpager.simulator.sampled_lru import SampledLRU
    from kvpager.simulator.trace import Trace

_TIERS = ("device", "host", "disk", "remote")
_CAPACITIES = "1%,5%,20%"
_STDOUT = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="a file of requests: which pages each of them reads, and when")
    parser.add_argument(
        "--capacity",
        metavar="LIST",
        help="per cent of the trace's distinct blocks, numbers of blocks, or sizes: 1%,5%,2000,8GiB (default: "
        f"{_CAPACITIES}, or none beside --tiers)".replace("%", "%%"),
    )
    parser.add_argument("--policy", metavar="LIST", help="eviction policies, and 'min' (default: lru,adaptive,min)")
    parser.add_argument("--tiers", metavar="LIST", help="tiers to replay together: device=0.5%%,host=2%%,disk=8GiB")
    parser.add_argument(
        "--inclusive", action="store_true", help="a page that comes up from a tier stays there too (default: it leaves)"
    )
    parser.add_argument("--format", metavar="NAME", help="of the file, where it can't be told from it")
    parser.add_argument("--skip-bad", action="store_true", help="leave damaged lines out instead of stopping there")
    parser.add_argument("--page-tokens", type=int, metavar="N", help="join pages into larger ones of so many tokens")
    _add_sizes(parser)
    _add_concurrency(parser)
    parser.add_argument(
        "--mrc",
        action="store_true",
        help="also LRU at every capacity, from a sample of the pages (SHARDS), and its error",
    )
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON; '-': print it instead of the table")
    parser.add_argument("--html", metavar="FILE", help="write a page with curves, complete in one file")
    parser.add_argument("--here", metavar="CAPACITY", help="mark this capacity in the page, and show its ages there")
    add_config(parser)


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what a block weighs, for capacities in bytes")
    group.add_argument("--bytes-per-token", type=int, metavar="N", help="of KV, over all layers")
    group.add_argument("--model", metavar="NAME", help="those of a model: a short name, a folder or a hub id")


def _add_concurrency(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests that overlap")
    group.add_argument(
        "--concurrency", action="store_true", help="pages of a request can't be dropped while it would be served"
    )
    group.add_argument(
        "--prefill-speed", type=float, default=10_000.0, metavar="N", help="prompt tokens a second (default 10000)"
    )
    group.add_argument(
        "--token-seconds", type=float, default=0.03, metavar="S", help="for each token answered (default 0.03)"
    )
    group.add_argument("--arrivals", metavar="FILE", help="another trace, whose requests say when these come")


def run(arguments: argparse.Namespace) -> int:
    from kvpager.cli.replay_progress import progress_over
    from kvpager.simulator.comparison import compare
    from kvpager.simulator.readers import read_trace

    chosen_options(arguments)  # nothing here needs them, but a wrong file or variable is wrong everywhere
    _check_files(arguments)
    weight = kv_bytes_per_token(arguments.bytes_per_token, arguments.model)
    trace = read_trace(
        arguments.trace, format=arguments.format, skip_bad=arguments.skip_bad, page_tokens=arguments.page_tokens
    )
    if arguments.arrivals is not None:
        trace = trace.with_arrivals(read_trace(arguments.arrivals, skip_bad=arguments.skip_bad))
    asked = _asked(arguments, trace, weight)
    with progress_over(len(trace.times), sys.stderr) as watch:
        rows = compare(trace, asked, watch)
    curve = _curve(trace) if arguments.mrc else None
    if arguments.json is not None:
        _write(arguments.json, json.dumps(_as_object(trace, rows, curve)))
    if arguments.html is not None:
        _write(arguments.html, _as_page(trace, rows, asked, curve))
    if _STDOUT not in (arguments.json, arguments.html):
        print(format_rows(trace, rows, curve))
    return 0


def _curve(trace: "Trace") -> "SampledLRU":
    from kvpager.simulator.sampled_lru import sampled_lru

    return sampled_lru(trace)


# -- what was asked for --------------------------------------------------------------------------------------------


def _asked(arguments: argparse.Namespace, trace: "Trace", weight: int | None) -> "Asked":
    from kvpager.eviction.make import POLICIES
    from kvpager.simulator.comparison import Asked
    from kvpager.simulator.concurrent import Service

    trace.require_pages()
    if arguments.policy is None:
        policies = [name for name in ("lru", "adaptive") if name in POLICIES] + ["min"]
    else:
        policies = _listed(arguments.policy, "--policy")
    tiers = () if arguments.tiers is None else _tiers(arguments.tiers, trace, weight)
    if arguments.inclusive and not tiers:
        raise ConfigError("--inclusive is about tiers; give --tiers, or leave it out")
    sizes = [] if tiers and arguments.capacity is None else _listed(arguments.capacity or _CAPACITIES, "--capacity")
    here = None if arguments.here is None else trace.capacity(arguments.here, weight)
    if here is not None and arguments.here not in sizes:
        sizes.append(arguments.here)
    capacities = sorted(((size, trace.capacity(size, weight)) for size in sizes), key=lambda each: each[1])
    service = Service(arguments.prefill_speed, arguments.token_seconds) if arguments.concurrency else None
    if arguments.html is not None and here is None and capacities:
        here = capacities[len(capacities) // 2][1]
    return Asked(tuple(policies), tuple(capacities), tiers, arguments.inclusive, service, here)


def _listed(text: str, flag: str) -> list[str]:
    """The parts of a list with commas, each once."""
    parts = [part.strip() for part in text.split(",")]
    if "" in parts:
        raise ConfigError(f"{flag} {text!r} has an empty part; write it like 'a,b'")
    return list(dict.fromkeys(parts))


def _tiers(text: str, trace: "Trace", weight: int | None) -> tuple[tuple[str, int], ...]:
    tiers: dict[str, int] = {}
    for part in _listed(text, "--tiers"):
        name, has_size, size = part.partition("=")
        if name not in _TIERS:
            raise ConfigError(f"--tiers names {name!r}, which is no tier; {did_you_mean(name, _TIERS)}")
        if not has_size or name in tiers:
            raise ConfigError(f"--tiers {text!r}: give each tier once, with its capacity, like 'device=0.5%,host=2%'")
        tiers[name] = trace.capacity(size, weight)
    if next(iter(tiers)) != _TIERS[0] or list(tiers) != sorted(tiers, key=_TIERS.index) or len(tiers) < 2:
        raise ConfigError(f"--tiers {text!r}: begin with the device, and name the tiers below it in the order of speed")
    return tuple(tiers.items())


def _check_files(arguments: argparse.Namespace) -> None:
    """Before hours of work: whether the results can be written, and over nothing that is needed."""
    targets = [name for name in (arguments.json, arguments.html) if name not in (None, _STDOUT)]
    for name in targets:
        path = Path(name)
        if path.resolve() == Path(arguments.trace).resolve():
            raise ConfigError(f"{name} is the trace itself; write the results to another file")
        if path.is_dir() or not path.parent.is_dir():
            raise ConfigError(f"the results can't be written to {name}; name a file in a folder that exists")
    if arguments.json is not None and arguments.json == arguments.html:
        raise ConfigError("--json and --html go to the same place; give them different ones")
    if arguments.here is not None and arguments.html is None:
        raise ConfigError("--here marks a capacity in the page; give --html FILE too, or leave it out")


# -- what is told --------------------------------------------------------------------------------------------------


def _write(name: str, text: str) -> None:
    if name == _STDOUT:
        print(text)
        return
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the results can't be written to {name}: {error.strerror}; name another file") from error


def _as_object(trace: "Trace", rows: "list[Row]", curve: "SampledLRU | None") -> dict[str, object]:
    about = {
        "name": trace.name,
        "page_tokens": trace.page_tokens,
        "requests": trace.num_requests,
        "references": trace.num_references,
        "blocks": trace.num_blocks,
        "skipped_lines": trace.skipped_lines,
    }
    found: dict[str, object] = {"trace": about, "results": [row.as_dict() for row in rows]}
    return found if curve is None else {**found, "lru_curve": asdict(curve)}


def _as_page(trace: "Trace", rows: "list[Row]", asked: "Asked", curve: "SampledLRU | None") -> str:
    from kvpager.simulator.page import replay_page

    return replay_page(trace, rows, asked.exact_at, curve)


def format_rows(trace: "Trace", rows: "list[Row]", curve: "SampledLRU | None" = None) -> str:
    """The table of a comparison, under a line about the trace."""
    head = (
        f"{trace.name}: {trace.num_requests:,} requests, {trace.num_references:,} references to {trace.num_blocks:,} "
        f"blocks of {trace.page_tokens} tokens"
    )
    if trace.skipped_lines:
        head += f"; {trace.skipped_lines:,} damaged lines left out"
    parts = [head]
    if single := [row for row in rows if not row.is_tiered]:
        parts += ["", _capacity_table(single)]
    if tiered := [row for row in rows if row.is_tiered]:
        parts += ["", _tier_table(tiered)]
    if curve is not None:
        parts += ["", _curve_text(trace, curve)]
    return "\n".join([*parts, "", *_notes(rows)])


def _curve_text(trace: "Trace", curve: "SampledLRU") -> str:
    every = len(curve.capacities) // 10 or 1
    points = list(zip(curve.capacities, curve.hit_ratios, strict=True))[::every]
    rows = [[f"{100 * capacity / trace.num_blocks:.3g}%", f"{capacity:,}", _percent(hit)] for capacity, hit in points]
    table = format_table(rows, ("capacity", "blocks", "lru hit"), numeric=(1, 2))
    return (
        f"{table}\nfrom {_percent(curve.rate)} of the blocks ({curve.sampled_references:,} references); off by "
        f"{100 * curve.mean_error:.2f} points on average and {100 * curve.largest_error:.2f} at most"
    )


def _capacity_table(rows: "list[Row]") -> str:
    header = ("capacity", "blocks", "policy", "hit", "of min", "of lru", "2nd half", "of min", "of lru", "evictions")
    lines = []
    for row in rows:
        result = row.result
        shares = [_percent(result.whole.ratio), _percent(row.of_optimum), _percent(row.of_lru)]
        shares += [_percent(result.second_half.ratio), _percent(row.half_of_optimum), _percent(row.half_of_lru)]
        lines.append([row.label, f"{result.capacity:,}", result.policy, *shares, f"{result.evictions:,}"])
    return format_table(lines, header, numeric=(1, 3, 4, 5, 6, 7, 8, 9))


def _tier_table(rows: "list[Row]") -> str:
    names = max((row.result.levels for row in rows), key=len)
    header = ["policy", *(f"{level.name} {level.capacity:,}" for level in names), "total", "of min", "of lru"]
    header += ["2nd half", "of min", "of lru", "demotions", "promotions"]
    lines = []
    for row in rows:
        levels = row.result.levels
        is_tiered = len(levels) == len(names)
        hits = [_percent(level.hits.ratio) for level in levels] if is_tiered else [""] * len(names)
        totals = [_percent(row.result.whole.ratio), _percent(row.of_optimum), _percent(row.of_lru)]
        totals += [_percent(row.result.second_half.ratio), _percent(row.half_of_optimum), _percent(row.half_of_lru)]
        moves = [f"{sum(level.stored for level in levels):,}", f"{sum(level.promoted for level in levels):,}"]
        lines.append([row.result.policy, *hits, *totals, *(moves if is_tiered else ["", ""])])
    return format_table(lines, header, numeric=range(1, len(header)))


def _notes(rows: "list[Row]") -> list[str]:
    """What has to be known to read the table right."""
    notes = []
    levels = max((row.result.levels for row in rows), key=len)
    if len(levels) > 1:
        total = sum(level.capacity for level in levels)
        kind = "inclusive" if any(row.result.inclusive for row in rows) else "exclusive"
        notes.append(f"{kind} tiers; min: the optimum of one tier of {total:,} blocks")
    together = next((row.result.concurrency for row in rows if row.result.concurrency), None)
    if together is None:
        notes.append("sequential: each request is done before the next one comes")
    else:
        notes.append(
            f"concurrent: {together.mean_live:,.0f} blocks are live on average, {together.peak_live:,} at most; min is "
            "the optimum without concurrency"
        )
    for row in rows:
        if row.result.cut and row.result.policy != "min":
            notes.append(f"{row.result.policy} at {row.label}: {row.result.cut:,} requests did not fit whole")
        if row.result.concurrency is not None and row.result.concurrency.is_tight:
            notes.append(f"{row.result.policy} at {row.label}: less than 3 times the live blocks, so it says little")
    return notes


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"
