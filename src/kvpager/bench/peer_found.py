"""What a comparison has found so far, workload by workload, and how it is kept in files between runs.

With a folder each workload is written as soon as it has run (FOLDER/peers_WORKLOAD.json), and not measured again: a run
that breaks goes on where it was, and runs of single workloads make one result. All engines of a workload are from one
run; what was measured in another way or with other code (``Setting.words``) is refused. Knows no processes.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvpager.bench.peer_catalog import OURS
from kvpager.bench.peer_contest import Rounds
from kvpager.bench.peer_figures import Agreement
from kvpager.bench.peer_process import Answer, Part, Run
from kvpager.errors import ConfigError, InvariantError


@dataclass(frozen=True, slots=True)
class Skipped:
    """``workload``: the only one that ``peer`` is left out of; empty: of all that came after."""

    peer: str
    workload: str
    reason: str

    def __str__(self) -> str:
        return f"SKIPPED {self.peer}{' in ' if self.workload else ''}{self.workload}: {self.reason}"


@dataclass(slots=True)
class Found:
    """Of the engines that ran, by name. ``about``: what each says of itself; ``at_once``: requests in equal memory.
    ``parts``: by workload, of those that were stopped in it and have no run to its end."""

    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    agreement: dict[str, Agreement] = field(default_factory=dict)
    rounds: Rounds = field(default_factory=dict)
    parts: dict[str, dict[str, Part]] = field(default_factory=dict)
    at_once: dict[str, int] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    def note(self, peer: str, about: dict[str, Any]) -> None:
        """Raises ConfigError where it is not what it was when it ran another workload."""
        known = self.about.setdefault(peer, about)
        if known != about:
            raise ConfigError(f"{peer} has changed between the parts: {known}, {about}; measure all of them again")

    def skip(self, peer: str, workload: str, reason: str) -> None:
        """Loudly. Ours can't be left out."""
        if peer == OURS:
            raise InvariantError(f"kvpager itself: {reason}")
        each = Skipped(peer, workload, reason)
        if each not in self.skipped:
            self.skipped.append(each)
        print(each, file=sys.stderr, flush=True)

    def stop(self, peer: str, workload: str, part: Part, rounds: int) -> None:
        """It was stopped in the middle of a workload, after ``rounds`` to the end. Loudly."""
        if rounds:
            reason = f"in round {rounds + 1} stopped with {part}; its figures are of the rounds before"
        else:
            reason = f"stopped with {part}"
            self.parts.setdefault(workload, {})[peer] = part
        self.skip(peer, workload, reason)


class Kept:
    """``folder``: None keeps nothing; it is made where it is not there. ``setting``: what must be the same for all that
    is put together; ``by_workload``: what more for each."""

    def __init__(
        self, folder: Path | None, setting: Mapping[str, object], by_workload: Mapping[str, Mapping[str, object]]
    ) -> None:
        self._folder, self._setting, self._by_workload = folder, setting, by_workload
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"--parts {folder} can't be made: {error.strerror}; name another folder") from error

    def read(self, workload: str, found: Found) -> bool:
        """Adds a workload that is there; whether it is. Raises ConfigError for one that was measured otherwise."""
        path = self._path(workload)
        if path is None or not path.exists():
            return False
        try:
            record = json.loads(path.read_text())
            measured = dict(record["setting"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is no workload that was kept ({error!r}); remove it") from None
        self._require_same(path, measured, self._setting_of(workload))
        for name, about in record["about"].items():
            found.note(name, about)
        found.agreement |= {name: Agreement(**each) for name, each in record["agreement"].items()}
        found.at_once |= record["at_once"]
        if record["runs"]:
            found.rounds[workload] = {name: [_run(each) for each in runs] for name, runs in record["runs"].items()}
        if record["parts"]:
            found.parts[workload] = {name: Part(**each) for name, each in record["parts"].items()}
        new = [Skipped(**each) for each in record["skipped"]]
        found.skipped += [each for each in new if each not in found.skipped]
        return True

    def write(self, workload: str, found: Found) -> None:
        """What is known of it, and whatever its figures need."""
        path = self._path(workload)
        if path is None:
            return
        record = {
            "setting": self._setting_of(workload),
            "about": found.about,
            "agreement": {name: asdict(each) for name, each in found.agreement.items()},
            "at_once": found.at_once,
            "runs": {name: [asdict(run) for run in runs] for name, runs in found.rounds.get(workload, {}).items()},
            "parts": {name: asdict(part) for name, part in found.parts.get(workload, {}).items()},
            "skipped": [asdict(each) for each in found.skipped if each.workload in ("", workload)],
        }
        new = path.with_suffix(".new")
        new.write_text(json.dumps(record))
        new.replace(path)

    def _path(self, workload: str) -> Path | None:
        return None if self._folder is None else self._folder / f"peers_{workload}.json"

    def _setting_of(self, workload: str) -> dict[str, object]:
        return {**self._setting, **self._by_workload[workload]}

    def _require_same(self, path: Path, measured: Mapping[str, object], wanted: Mapping[str, object]) -> None:
        """Also where one of the two knows no such thing: a file of an older version."""
        for name in dict.fromkeys((*wanted, *measured)):
            before, now = (setting.get(name, "unknown") for setting in (measured, wanted))
            if before != now:
                raise ConfigError(
                    f"{path} was measured with {name} {before}, not {now}; remove it, or name another folder with "
                    f"--parts"
                )


def _run(record: dict[str, Any]) -> Run:
    answers = tuple(
        Answer(tuple(each["tokens"]), each["due"], tuple(each["times"]), tuple(each["margins"]))
        for each in record["answers"]
    )
    return Run(answers, record["seconds"], record["peak_bytes"])
