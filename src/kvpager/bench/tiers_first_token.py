"""Time to the first token of a prompt whose prefix was computed before: from each tier, against computing it again.

In turn, with a new prompt each round: computed, found on the device, and found only in a lower tier. Pages go
down after the first of them, so that no writing slows the computing; then what the device knows is forgotten, and the
tier's files are taken out of the page cache. All three must give the same tokens. Everything that is found is loaded,
whether that is faster or not.
"""

import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from kvpager import DiskTier, HostTier, RemoteTier
from kvpager.bench.page_cache import out_of_page_cache
from kvpager.bench.report import SEED, Result
from kvpager.bench.tiers_scale import TierScale
from kvpager.bench.tiers_waits import Waits, waits_of_this_thread
from kvpager.config.tiers import TierOptions
from kvpager.engine import Engine, Sampling
from kvpager.engine.load_or_compute import Choice, LoadOrCompute, Offer, Reason
from kvpager.errors import InvariantError
from kvpager.types import FaultKind, TierKind

AT_LEAST = 10.0
PREFIX = 4096  # that the target is about
_PERIOD = 24  # tokens
_SUFFIX = 32  # tokens behind the prefix: a page
_ANSWER = Sampling(max_tokens=4, ignore_eos=True)


@dataclass(slots=True)
class _Timed:
    """One request. ``load``: seconds until its pages had come; ``compute``: that the model took for the first token."""

    seconds: float
    load: float
    compute: float
    tokens: list[int]

    @property
    def overlap(self) -> float:
        """The largest share of the time that loading layer by layer beside computing could save."""
        return min(self.load, self.compute) / self.seconds


def measure(scale: TierScale, folder: Path, model: Any, waits: Waits) -> list[Result]:
    """``model``: SmolLM2, loaded. ``waits`` learns what the bookkeeping thread waited for."""
    results: list[Result] = []
    tiers: list[tuple[TierKind, TierOptions]] = [
        (TierKind.HOST, HostTier(scale.tier)),
        (TierKind.DISK, DiskTier(folder / "first_token", scale.tier)),
    ]
    with _redis(folder) as url:
        if url is not None:
            tiers.append((TierKind.REMOTE, RemoteTier(url, deadline=30.0)))
        for kind, options in tiers:
            with Engine(model, capacity=scale.pool, tiers=(options,), write_back="back", load_deadline=60.0) as engine:
                engine.loading.model = _LoadsAll(engine.layout.page_size, engine.layout.block_stride)
                for prefix in scale.prefixes:
                    results += _series(engine, kind, prefix, scale, folder / "first_token", waits)
    return results


class _LoadsAll(LoadOrCompute):
    """Loads whatever is found, also where computing it would be faster."""

    def choose(self, offers: Sequence[Offer], max_blocks: int, borders: Iterable[int] | None = None) -> Choice:
        return Choice(len(offers), len(offers), Reason.UNKNOWN)


def _series(engine: Engine, kind: TierKind, prefix: int, scale: TierScale, files: Path, waits: Waits) -> list[Result]:
    name = kind.name.lower()
    rounds: list[tuple[_Timed, _Timed, _Timed]] = []
    for number in range(1 + scale.rounds):  # the first is not counted: memory is touched, rates are learned
        prompt = _prompt(engine, prefix, number)
        computed = _first_token(engine, prompt, waits)
        resident = _first_token(engine, prompt, waits)
        _send_down(engine, files)
        loaded = _first_token(engine, prompt, waits, kind)
        if not computed.tokens == resident.tokens == loaded.tokens:
            raise InvariantError(f"a prefix from the {name} tier gave other tokens; it was not timed")
        rounds.append((computed, resident, loaded))
    measured = rounds[1:]
    by_compute = [computed.seconds / loaded.seconds for computed, _, loaded in measured]
    ratio = f"ttft_{prefix}_recompute_vs_{name}"
    is_target = (kind, prefix) == (TierKind.DISK, PREFIX)
    results = [
        Result(
            ratio,
            statistics.median(by_compute),
            "ratio",
            at_least=AT_LEAST if is_target else None,
            spread=(min(by_compute), max(by_compute)),
        )
    ]
    columns = {f"ttft_{prefix}_ms/{name}": [loaded.seconds * 1e3 for _, _, loaded in measured]}
    columns[f"ttft_{prefix}_load_ms/{name}"] = [loaded.load * 1e3 for _, _, loaded in measured]
    if kind is TierKind.DISK:
        columns[f"ttft_{prefix}_ms/recompute"] = [computed.seconds * 1e3 for computed, _, _ in measured]
        columns[f"ttft_{prefix}_ms/device"] = [resident.seconds * 1e3 for _, resident, _ in measured]
    results += [Result(each, statistics.median(values), "ms") for each, values in columns.items()]
    overlaps = [loaded.overlap for _, _, loaded in measured]
    results.append(Result(f"ttft_{prefix}_overlap_bound/{name}", statistics.median(overlaps), "share"))
    return results


def _prompt(engine: Engine, prefix: int, number: int) -> list[int]:
    """A few tokens over and over: the model is sure how it goes on, so that the tokens don't hang on the rounding of
    bf16, which differs with how many tokens are computed at once."""
    draw = Random(f"{SEED} {prefix} {number}")
    period = [draw.randrange(engine.vocab_size) for _ in range(_PERIOD)]
    length = min(prefix + _SUFFIX, engine.max_tokens - _ANSWER.max_tokens)
    return (period * (length // _PERIOD + 1))[:length]


def _first_token(engine: Engine, prompt: list[int], waits: Waits, kind: TierKind | None = None) -> _Timed:
    """Runs a prompt alone. ``kind``: where its prefix must come from."""
    with waits_of_this_thread(engine.cache.lower, waits):
        return _run_alone(engine, prompt, kind)


def _run_alone(engine: Engine, prompt: list[int], kind: TierKind | None) -> _Timed:
    before, loads = engine.statistics(), _load_seconds(engine)
    begin = time.perf_counter()
    request = engine.submit(prompt, _ANSWER)
    while not request.branches[0].output:
        engine.step()
    seconds = time.perf_counter() - begin
    compute = engine.statistics().model_seconds - before.model_seconds
    while engine.has_work:
        engine.step()
    after = engine.statistics()
    if kind is not None and after.prefix_by_tier.get(kind, 0) == before.prefix_by_tier.get(kind, 0):
        raise InvariantError(f"nothing came from the {kind.name.lower()} tier; it was not timed")
    return _Timed(seconds, _load_seconds(engine) - loads, compute, list(request.branches[0].output))


def _load_seconds(engine: Engine) -> float:
    return engine.cache.statistics().faults[FaultKind.MAJOR].seconds


def _send_down(engine: Engine, files: Path) -> None:
    """Every page goes down, and is forgotten above."""
    cache, lower = engine.cache, engine.cache.lower
    assert lower is not None
    blocks = cache.index.all_blocks().tolist()
    while any(not lower.is_clean(block) for block in blocks):
        lower.write_down(blocks)
        if not lower.settle(60.0):
            raise InvariantError("pages do not get down; it was not timed")
    cache.clear_prefix()
    with suppress(FileNotFoundError):
        out_of_page_cache(files)


@contextmanager
def _redis(folder: Path) -> Iterator[str | None]:
    """A Redis server of our own, on this machine; None where there is none."""
    program = shutil.which("redis-server")
    if program is None or find_spec("redis") is None:
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait_for(port, server)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait()


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(100):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        if server.poll() is not None:
            break
        time.sleep(0.05)
    raise InvariantError("the redis server for the remote tier does not start")
