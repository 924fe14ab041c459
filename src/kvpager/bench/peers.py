"""kvpager and other engines, side by side: one model, the same requests, this machine, in turn in one run.

Each engine is a process (bench/peer_process.py) in an interpreter of its own; `make peers` makes those. One that can't
be had is left out, and the result and standard error say why. All get two threads, the same memory for KV and the same
number of bits for weights where they have it; ``peer_..._vs_best`` is against the fastest of those with as many as we.

Before anything is timed, the tokens of each are compared with Hugging Face's greedy ones in float32. One that differs
where the reference was sure computes something else, and is left out; if it is ours, that is an error.

Every round has token ids of its own, so nothing is found that a round before has left. In the first round all run; in
those after it only we and the peers that are not far behind the fastest, in turn (A B B A), until the time is used up.
A peer that would need far more time than the fastest one is stopped, in that workload alone, when that one's time has
passed: so the fastest of a workload has run it to its end.
"""

import hashlib
import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kvpager.bench.peer_catalog import OURS, REFERENCE, THREADS, Peer, chosen
from kvpager.bench.peer_code import code_digest
from kvpager.bench.peer_contest import Field, Runners, Runs, contest
from kvpager.bench.peer_figures import agreement, most_at_once
from kvpager.bench.peer_found import Found, Kept
from kvpager.bench.peer_process import Part, PeerFailed, PeerProcess
from kvpager.bench.peer_results import results, rivals, without_a_whole_run
from kvpager.bench.peer_scale import AT_ONCE, Scale, estimated_seconds, scale_of
from kvpager.bench.report import hardware, report
from kvpager.bench.workloads import as_json
from kvpager.errors import ConfigError
from kvpager.models.fetch import find_fetched

_MODEL = "smollm2"
_SURE = {"float32": 0.05, "bfloat16": 1.5}
"""Logits: where the reference's likeliest token leads by more, rounding alone does not choose another one."""


@dataclass(frozen=True, slots=True)
class Setting:
    """``folder``: of the peers' environments."""

    folder: Path
    precision: str
    scale: Scale

    def open(self, peer: Peer, kv_bytes: int, **more: object) -> PeerProcess:
        lacks = peer.lacks(self.folder)
        if lacks is not None:
            raise PeerFailed(lacks)
        options = {
            "model": str(find_fetched(_MODEL)),
            "folder": str(self.folder.absolute()),
            "precision": self.precision,
            "threads": THREADS,
            "kv_bytes": kv_bytes,
            "variant": peer.variant,
            **more,
        }
        return PeerProcess(peer.command(self.folder), options)

    def words(self, wanted: list[Peer]) -> dict[str, object]:
        """What two runs must have alike to be put together."""
        return {
            "hardware": hardware(),
            "precision": self.precision,
            "engines": [peer.name for peer in wanted],
            "rounds": self.scale.rounds,
            "shorten": self.scale.shorten,
            "code": code_digest(),
        }

    def workload_words(self) -> dict[str, dict[str, object]]:
        """And what more for each workload. ``requests``: a digest of the first round's."""
        found: dict[str, dict[str, object]] = {}
        for name, share in self.scale.shares.items():
            load = self.scale.room_load() if name == AT_ONCE else self.scale.load(name, 0)
            digest = hashlib.sha256(json.dumps(as_json(load)).encode()).hexdigest()
            found[name] = {"share": share, "requests": digest[:12]}
        return found


@dataclass(frozen=True, slots=True)
class _Notes:
    """What happens goes into ``found``, and each workload that has run into the folder."""

    found: Found
    kept: Kept

    def skip(self, peer: str, workload: str, reason: str) -> None:
        self.found.skip(peer, workload, reason)

    def stopped(self, peer: str, workload: str, part: Part, rounds: int) -> None:
        self.found.stop(peer, workload, part, rounds)

    def done(self, workload: str, runs: Runners) -> None:
        self.found.rounds[workload] = runs
        self.kept.write(workload, self.found)


def run(
    quick: bool = False,
    folder: str = ".venv-peers",
    traces: str | None = None,
    parts: str | None = None,
    peers: str | None = None,
    workloads: str | None = None,
    precision: str = "bfloat16",
    share: str | None = None,
) -> dict[str, object]:
    """``peers``, ``workloads``: names with commas between them; None: all. ``share``: of each workload's requests;
    None: as many as let it end in about half an hour. ``parts``: where each workload is kept (peer_found.py)."""
    if precision not in _SURE:
        raise ConfigError(f"unknown precision {precision!r}; there are {', '.join(_SURE)}")
    setting = Setting(Path(folder), precision, scale_of(quick, workloads, share, traces))
    wanted = [peer for peer in chosen(peers) if peer.variant != precision]  # else it would run twice
    kept = Kept(None if parts is None else Path(parts), setting.words(wanted), setting.workload_words())
    found = Found()
    left = {name: each for name, each in setting.scale.shares.items() if not kept.read(name, found)}
    if left:
        measure(replace(setting, scale=replace(setting.scale, shares=left)), wanted, found, kept)
    return _report(setting, found)


def measure(setting: Setting, wanted: list[Peer], found: Found, kept: Kept) -> None:
    """Adds to ``found``; each workload is ``kept`` as soon as it has run."""
    scale = setting.scale
    _tell_time(scale, wanted)
    with ExitStack() as stack:
        engines: dict[str, Runs] = {}
        for peer in wanted:
            try:
                process = stack.enter_context(setting.open(peer, scale.kv_bytes))
            except PeerFailed as failure:
                found.skip(peer.name, "", str(failure))
            else:
                engines[peer.name] = process
                found.note(peer.name, process.about)
        _compare(setting, engines, found)
        only = {peer.name: peer.only for peer in wanted if peer.only is not None}
        contest(engines, Field(OURS, rivals(found.about), only), scale, _Notes(found, kept))
        left = set(engines)
    if AT_ONCE in scale.shares:
        for peer in wanted:
            if peer.name in left:
                _count_at_once(setting, peer, found)
        kept.write(AT_ONCE, found)


def _tell_time(scale: Scale, wanted: list[Peer]) -> None:
    running = {
        name: sum(peer.name != OURS and name in (peer.only or (name,)) for peer in wanted) for name in scale.shares
    }
    minutes = estimated_seconds(scale, running, len(wanted)) / 60
    what = f"{len(wanted)} engines, {', '.join(scale.shares)}"
    print(f"{what}: about {minutes:.0f} minutes on two cores with nothing beside it", file=sys.stderr, flush=True)


def _compare(setting: Setting, engines: dict[str, Runs], found: Found) -> None:
    """Takes out of ``engines`` what does not compute the model."""
    load, sure = setting.scale.check_load(), _SURE[setting.precision]
    with setting.open(REFERENCE, setting.scale.kv_bytes, precision="float32", margins=True) as reference:
        right = reference.run(load).answers
    for name in list(engines):
        try:
            found.agreement[name] = each = agreement(engines[name].run(load).answers, right)
        except PeerFailed as failure:
            found.skip(name, "", str(failure))
            del engines[name]
            continue
        if each.margin > sure:
            del engines[name]
            found.skip(name, "", f"it chose another token where the reference led by {each.margin:.2f} logits")


def _count_at_once(setting: Setting, peer: Peer, found: Found) -> None:
    """In less memory than the requests need together, in a process of its own."""
    try:
        with setting.open(peer, setting.scale.room_bytes, eager=True) as process:  # nothing is timed
            found.at_once[peer.name] = most_at_once(process.run(setting.scale.room_load()).answers)
    except PeerFailed as failure:
        found.skip(peer.name, AT_ONCE, str(failure))


def _report(setting: Setting, found: Found) -> dict[str, object]:
    scale = setting.scale
    words = f"SmolLM2-135M, {setting.precision}, {THREADS} threads, {scale.kv_bytes >> 20} MiB of KV"
    record = report(
        "peers",
        results(found.rounds, found.parts, found.about, found.agreement, found.at_once, scale.room_bytes),
        words,
        checks=list(_checks(found)),
        peers=_versions(found),
    )
    return {
        **record,
        "engines": {name: each["precision"] for name, each in found.about.items()},
        "shares": dict(scale.shares),
        "skipped": [asdict(each) for each in found.skipped],
    }


def _versions(found: Found) -> dict[str, str]:
    return {
        f"{package} of {name}": version
        for name, each in found.about.items()
        if name != OURS
        for package, version in each["versions"].items()
    }


def _checks(found: Found) -> Iterable[str]:
    for name, each in found.agreement.items():
        where = "" if each.first is None else f", first at token {each.first}, margin {each.margin:.2g} logits"
        yield f"{name}: {each.share:.1%} of the tokens before a difference from greedy float32{where}"
    yield from map(str, found.skipped)
    yield from without_a_whole_run(found.rounds, found.parts, rivals(found.about))
