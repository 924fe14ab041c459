"""Traces of requests: record your own while a command answers, see what is in one, or turn any kind into our own.

A recording has hashes, times and counts; no text and no tokens. 'kvpager replay' says what a cache would have hit.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvpager.cli.arguments import add_common, chosen_options, did_you_mean
from kvpager.errors import ConfigError

if TYPE_CHECKING:
    from kvpager.simulator.recording import Recorder
    from kvpager.simulator.trace import Trace

_ACTIONS = ("record", "info", "convert")
_ACTIONS_HELP = """actions:
  record FILE -- COMMAND ...   run a command such as 'run' or 'chat' and record its requests in FILE, a new file;
                               the same as 'kvpager COMMAND ... --record FILE'
  info FILE                    how many requests and blocks, how often they are used again
  convert FILE NEW             write a trace of another kind as our own"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _ACTIONS_HELP
    parser.add_argument("action", metavar="ACTION", help=", ".join(_ACTIONS))
    parser.add_argument("path", metavar="FILE", help="the trace")
    parser.add_argument("rest", nargs="*", metavar="...", help="record: the command; convert: the file to write")
    parser.add_argument("--format", metavar="NAME", help="of FILE, where it can't be told from it")
    parser.add_argument("--skip-bad", action="store_true", help="leave damaged lines out instead of stopping there")
    parser.add_argument("--page-tokens", type=int, metavar="N", help="join pages into larger ones of N tokens")
    add_common(parser, names=())


def run(arguments: argparse.Namespace) -> int:
    chosen_options(arguments)  # nothing here needs them, but a wrong file or variable is wrong everywhere
    action, rest = arguments.action, arguments.rest
    if action not in _ACTIONS:
        raise ConfigError(f"unknown action {action!r}; {did_you_mean(action, _ACTIONS)}")
    if action == "record":
        return _record(arguments.path, rest)
    if action == "info" and not rest:
        return _info(arguments)
    if action == "convert" and len(rest) == 1:
        return _convert(arguments, rest[0])
    raise ConfigError("give 'info' one file, and 'convert' the trace and the file to write; see kvpager trace --help")


def _record(path: str, command: list[str]) -> int:
    from kvpager.cli.main import dispatch

    if not command:
        raise ConfigError("what is to be recorded? write it behind --, like: kvpager trace record FILE -- chat")
    if Path(path).exists():  # before a model is loaded
        raise ConfigError(f"{path} exists already and is never overwritten; name another file")
    try:
        return dispatch([command[0], "--record", path, *command[1:]])
    finally:
        if Path(path).exists():
            print(f"{_read(path).num_requests} requests recorded in {path}", file=sys.stderr)


def _read(path: str, format: str | None = None, skip_bad: bool = False, page_tokens: int | None = None) -> "Trace":
    from kvpager.simulator.readers import read_trace

    return read_trace(path, format=format, skip_bad=skip_bad, page_tokens=page_tokens)


def _read_given(arguments: argparse.Namespace) -> "Trace":
    return _read(arguments.path, arguments.format, arguments.skip_bad, arguments.page_tokens)


# -- info ----------------------------------------------------------------------------------------------------------


def _info(arguments: argparse.Namespace) -> int:
    facts = facts_of(_read_given(arguments))
    if arguments.json:
        print(json.dumps(facts))
    else:
        print(_as_text(facts))
    return 0


def facts_of(trace: "Trace") -> dict[str, object]:
    """What is in a trace. ``reused``: the share of prompt tokens that had come before behind the same prefix, which no
    cache can exceed. ``stops``: how many requests ended in which way."""
    import numpy as np

    from kvpager.eviction.policy import StopReason

    highest = np.maximum.accumulate(trace.pages)
    is_known = np.concatenate([[False], trace.pages[1:] <= highest[:-1]])[: trace.num_references]
    before = np.concatenate([[0], np.cumsum(is_known)])
    stops = np.bincount(trace.stop, minlength=len(StopReason))
    return {
        "name": trace.name,
        "requests": trace.num_requests,
        "seconds": float(trace.times[-1] - trace.times[0]) if trace.num_requests else 0.0,
        "page_tokens": trace.page_tokens,
        "references": trace.num_references,
        "blocks": trace.num_blocks,
        "reused": trace.token_ratio(np.diff(before[trace.first])),
        "input_tokens": int(trace.input_tokens.sum(dtype=np.int64)),
        "output_tokens": int(trace.output_tokens.sum(dtype=np.int64)),
        "partial_tails": int(trace.has_partial_tail.sum()),
        "stops": {reason.name.lower(): int(stops[reason]) for reason in StopReason},
        "skipped_lines": trace.skipped_lines,
    }


def _as_text(facts: dict[str, object]) -> str:
    requests: int = facts["requests"]  # type: ignore[assignment]
    stops: dict[str, int] = facts["stops"]  # type: ignore[assignment]
    each = max(1, requests)
    lines = [
        f"{facts['name']}: {requests:,} requests in {facts['seconds']:,.0f} seconds",
        f"blocks     {facts['blocks']:,} of {facts['page_tokens']} tokens, referred to {facts['references']:,} times",
        f"reused     {facts['reused']:.1%} of the prompt tokens: no cache hits more",
        f"prompts    {facts['input_tokens'] / each:,.0f} tokens on average",  # type: ignore[operator]
        f"answers    {facts['output_tokens'] / each:,.0f} tokens on average",  # type: ignore[operator]
        "ended      " + ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in stops.items()),
    ]
    if facts["skipped_lines"]:
        lines.append(f"damaged    {facts['skipped_lines']:,} lines, left out")
    return "\n".join(lines)


# -- convert -------------------------------------------------------------------------------------------------------


def _convert(arguments: argparse.Namespace, target: str) -> int:
    from kvpager.simulator.recording import Recorder

    trace = _read_given(arguments)
    trace.require_pages()
    with Recorder(target, page_tokens=trace.page_tokens) as recorder:
        try:
            _write(trace, recorder)
            if recorder.failure:
                raise ConfigError(f"{target}: {recorder.failure}")
        except BaseException:
            Path(target).unlink()  # a part of a trace would pass for all of it
            raise
    said = {"path": target, "requests": recorder.num_requests}
    print(json.dumps(said) if arguments.json else f"{recorder.num_requests:,} requests written to {target}")
    return 0


def _write(trace: "Trace", recorder: "Recorder") -> None:
    from kvpager.eviction.policy import StopReason

    first, times = trace.first.tolist(), trace.times.tolist()
    for request in range(trace.num_requests):
        recorder.record(
            times[request] - times[0],
            [page.to_bytes(8, "little") for page in trace.pages[first[request] : first[request + 1]].tolist()],
            input_tokens=int(trace.input_tokens[request]),
            output_tokens=int(trace.output_tokens[request]),
            matched=None,
            stop=StopReason(int(trace.stop[request])),
        )
