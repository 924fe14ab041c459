"""``kvpager doctor``: names what is there, what is missing and how to get it, and notices a pool that is wrong."""

import json
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from kvpager import native
from kvpager.cache.sequence import Sequence
from kvpager.cli import doctor
from kvpager.config import Options

Call = Callable[..., object]


@pytest.fixture(autouse=True)
def _best_kernels() -> Iterator[None]:
    yield
    native.choose("auto")


def test_the_report_has_every_section(kvpager: Call) -> None:
    ended = kvpager("doctor", "--json", "--device", "cpu")
    assert ended.code == 0
    report = json.loads(ended.out)
    assert list(report) == [
        "system",
        "memory",
        "packages",
        "devices",
        "native",
        "attention",
        "models",
        "tiers",
        "self-test",
    ]
    assert report["packages"]["numpy"] == metadata.version("numpy")
    assert report["packages"]["rich"] == f"{metadata.version('rich')}  [cli]"
    assert report["devices"]["chosen"] == "cpu"
    assert report["attention"]["reference"] == "available"
    assert report["attention"]["why"] == "the best that works here"
    assert report["models"]["smollm2"] == "absent: kvpager model fetch smollm2"
    assert "kvpager model fetch smollm2" in report["models"]["chosen"]
    assert report["self-test"]["result"] == "passed"


def test_the_text_has_every_section(kvpager: Call) -> None:
    ended = kvpager("doctor")
    titles = [line for line in ended.out.splitlines() if not line.startswith(" ")]
    assert titles == ["system", "memory", "packages", "devices", "native", "attention", "models", "tiers", "self-test"]
    assert "  result  passed" in ended.out.splitlines()


def test_a_package_that_is_missing_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without(name: str) -> str:
        if name in ("rich", "torch"):
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)
    packages = doctor._packages()
    assert packages["rich"] == "missing: pip install 'kvpager[cli]'"
    assert packages["torch"] == "missing: pip install 'kvpager'"
    assert "missing" not in str(packages["transformers"])
    assert "pytest" not in packages  # of an extra for developers


def test_options_that_can_not_work_say_why() -> None:
    report = doctor.examine(Options(device="cuda:9", attention="nosuch", model="./nowhere"))
    assert str(report["devices"]["chosen"]).startswith("can't be used: ")
    assert "unknown attention backend 'nosuch'" in str(report["attention"]["chosen"])
    assert "there is no model at ./nowhere" in str(report["models"]["chosen"])


def test_the_native_kernels_are_shown(kvpager: Call) -> None:
    module = native.module()
    if module is None:
        pytest.skip(f"no native kernels: {native.why_not()}")
    section = json.loads(kvpager("doctor", "--json", "--native", "portable").out)["native"]
    assert section["active"] == "portable"
    assert section["why"] == "by option 'native'"
    assert section["available"] == module.available_isas()
    assert section["threads"] == module.num_threads()
    assert section["openmp"].startswith(("shared with torch: /", "not shared, "))
    assert json.loads(kvpager("doctor", "--json").out)["native"]["why"] == "the best that works here"
    assert json.loads(kvpager("doctor", "--json").out)["native"]["active"] == module.available_isas()[-1]


def test_native_kernels_that_are_off_or_missing_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._native(Options(native="off")) == {"kernels": "none, torch computes: turned off by option 'native'"}
    monkeypatch.setattr(native, "_load", lambda: (None, "not built: get a compiler"))
    assert doctor._native(Options()) == {"kernels": "none, torch computes: not built: get a compiler"}
    refused = str(doctor._native(Options(native="avx2"))["kernels"])
    assert refused.startswith("can't be used: option 'native' asks for 'avx2'")
    assert refused.endswith("no native kernels (not built: get a compiler)")


def test_two_openmp_runtimes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = "7f r-xp 0 00:1 1 /a/libgomp.so.1\n7f r--p 0 00:1 1 /a/libgomp.so.1\n7f r-xp 0 00:1 2 /b/libomponents.so\n"
    monkeypatch.setattr(doctor.Path, "read_text", lambda path: maps)
    assert doctor._openmp() == "shared with torch: /a/libgomp.so.1"
    monkeypatch.setattr(doctor.Path, "read_text", lambda path: maps + "7f r-xp 0 00:1 3 /c/libomp.so.5\n")
    assert doctor._openmp().startswith("not shared, ")


def test_the_chosen_model_is_shown(kvpager: Call, model: str) -> None:
    assert json.loads(kvpager("doctor", "--json", "--model", model).out)["models"]["chosen"] == model


def test_the_self_test_notices_wrong_bytes(monkeypatch: pytest.MonkeyPatch, kvpager: Call) -> None:
    write = Sequence.write

    def write_wrong(self: Sequence, start: int, k: object, v: object) -> None:
        write(self, start, k, v + 1)  # type: ignore[operator]

    monkeypatch.setattr(Sequence, "write", write_wrong)
    ended = kvpager("doctor", "--json")
    assert ended.code == 1
    assert json.loads(ended.out)["self-test"] == {
        "result": "failed",
        "reason": "RuntimeError: V of the first sequence is not what was written",
    }


def test_the_self_test_notices_a_fork_that_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sequence, "fork", lambda self: self)
    assert "the first sequence is not what was written" in str(doctor._self_test()["reason"])


def test_memory_that_is_unknown_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> int:
        raise doctor.KVPagerError("this host doesn't say")

    monkeypatch.setattr(doctor, "total_memory", unknown)
    assert doctor._memory() == {"unknown": "this host doesn't say"}


def test_the_tiers_that_are_asked_for_are_shown(kvpager: Call, tmp_path: Path) -> None:
    tiers = ["host=1GiB", f"disk={tmp_path / 'kv'},size=2GiB", "remote=redis://me:secret@cache:6379/0"]
    ended = kvpager("doctor", "--json", *[f"--tier={tier}" for tier in tiers])
    shown = json.loads(ended.out)["tiers"]
    assert shown["host"] == "1 GiB of memory, the pool not counted"
    assert shown["disk"].startswith(f"{tmp_path / 'kv'} (new), at most 2 GiB; ")
    assert "secret" not in ended.out
    assert not (tmp_path / "kv").exists(), "looking changes nothing"
    too_large = json.loads(kvpager("doctor", "--json", "--tier", "host=1PiB").out)["tiers"]
    assert too_large["host"].startswith("can't be used: a host tier of 1 PiB is more than")
    assert "--tier host=auto" in json.loads(kvpager("doctor", "--json").out)["tiers"]["none"]
