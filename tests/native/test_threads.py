"""How many threads the kernels use, in processes of their own: what OpenMP, the affinity and control groups allow."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

PLENTY = {"OMP_NUM_THREADS": "64"}
COUNT = "from kvpager import native; print(native.module().num_threads())"


def run(code: str, processors: set[int] | None = None, **environment: str) -> str:
    """What a fresh interpreter prints."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=None if processors is None else lambda: os.sched_setaffinity(0, processors),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def allowed(native: ModuleType) -> int:
    """What this machine allows a process without any setting."""
    processors = len(os.sched_getaffinity(0))
    return min(processors, native.read_cpu_quota() or processors)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_environment_bounds_threads(native: ModuleType, count: int) -> None:
    assert int(run(COUNT, OMP_NUM_THREADS=str(count))) == min(count, allowed(native))


def test_never_more_than_there_are_processors(native: ModuleType) -> None:
    assert int(run(COUNT)) == int(run(COUNT, **PLENTY)) == allowed(native)


def test_affinity_bounds_threads(native: ModuleType) -> None:
    one = {min(os.sched_getaffinity(0))}
    assert run(COUNT, processors=one) == run(COUNT, processors=one, **PLENTY) == "1"


def test_affinity_is_asked_for_at_every_call(native: ModuleType) -> None:
    code = """
        import os
        from kvpager import native
        before = native.module().num_threads()
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(before, native.module().num_threads())
    """
    assert run(code, **PLENTY) == f"{allowed(native)} 1"


def test_bound_threads_count_their_places(native: ModuleType) -> None:
    """Once bound, the calling thread's own mask is one place: it says nothing about the other threads."""
    first, *others = sorted(os.sched_getaffinity(0))
    assert int(run(COUNT, OMP_PROC_BIND="true", OMP_PLACES="threads", **PLENTY)) == allowed(native)
    assert run(COUNT, OMP_PROC_BIND="true", OMP_PLACES=f"{{{first}}}", **PLENTY) == "1"
    assert run(COUNT, GOMP_CPU_AFFINITY=str(first), **PLENTY) == "1"
    if others:
        two = f"{{{first}}},{{{others[0]}}}"
        assert int(run(COUNT, OMP_PROC_BIND="close", OMP_PLACES=two, **PLENTY)) == min(2, allowed(native))


def test_bound_threads_compute(native: ModuleType) -> None:
    code = """
        import numpy as np
        from kvpager import native
        data = np.ones(8 << 20, np.uint8)
        print(native.module().checksum(data.ctypes.data, data.nbytes))
    """
    assert run(code, OMP_PROC_BIND="true", **PLENTY) == run(code, OMP_NUM_THREADS="1")


@pytest.mark.parametrize("first", ["torch", "native"])
def test_torch_and_the_kernels_share_one_openmp(native: ModuleType, first: str) -> None:
    code = f"""
        from kvpager import native
        if {first!r} == "native":
            native.module()
        import torch
        assert native.module() is not None
        torch.set_num_threads(1)
        one = native.module().num_threads()
        with open("/proc/self/maps") as maps:
            print(one, len({{line.split()[-1] for line in maps if "libgomp" in line}}))
    """
    assert run(code) == "1 1"


def test_the_kernels_do_not_import_torch(native: ModuleType) -> None:
    assert run('import sys; from kvpager import native; native.module(); print("torch" in sys.modules)') == "False"


V2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "33 32 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
OTHER = "34 32 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset"


def fake(root: Path, mounts: list[str], groups: list[str], files: dict[str, str]) -> str:
    """A root folder with what the kernel shows of control groups."""
    files = {"proc/self/mountinfo": "\n".join(mounts), "proc/self/cgroup": "\n".join(groups)} | {
        f"sys/fs/cgroup/{name}": text for name, text in files.items()
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return str(root)


V1_MAX = {"cpu,cpuacct/a/cpu.cfs_quota_us": "350000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"}
V1_NONE = {"cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1", "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("mounts", "groups", "files", "expected"),
    [
        ([V2.format(root="/")], ["0::/"], {"cpu.max": "200000 100000"}, 2),
        ([V2.format(root="/")], ["0::/"], {"cpu.max": "max 100000"}, None),
        ([V2.format(root="/")], ["0::/"], {"cpu.max": "150000 100000"}, 2),
        ([V2.format(root="/")], ["0::/"], {"cpu.max": "10000 100000"}, 1),
        ([V2.format(root="/")], ["0::/a/b"], {"a/b/cpu.max": "300000 100000", "a/cpu.max": "max 100000"}, 3),
        ([V2.format(root="/")], ["0::/a/b"], {"a/b/cpu.max": "max 100000", "a/cpu.max": "400000 100000"}, 4),
        ([V2.format(root="/")], ["0::/a/b"], {"a/b/cpu.max": "900000 100000", "a/cpu.max": "400000 100000"}, 4),
        ([V2.format(root="/")], ["0::/a"], {"b/cpu.max": "100000 100000"}, None),
        ([V2.format(root="/pod/c1")], ["0::/pod/c1/x"], {"x/cpu.max": "200000 100000", "cpu.max": "max 100000"}, 2),
        ([V2.format(root="/pod/c1")], ["0::/pod/c12"], {"cpu.max": "500000 100000", "2/cpu.max": "100000 100000"}, 5),
        ([V2.format(root="/")], ["0::/../../b"], {"cpu.max": "300000 100000"}, 3),
        ([OTHER, V1.format(root="/")], ["4:cpuset:/z", "3:cpu,cpuacct:/a/b"], V1_NONE | V1_MAX, 4),
        ([V1.format(root="/")], ["3:cpu,cpuacct:/a/b"], V1_NONE, None),
        ([V1.format(root="/docker/1")], ["3:cpu,cpuacct:/docker/1/a"], V1_MAX, 4),
        ([], [], {"cpu.max": "100000 100000"}, None),
    ],
    ids=[
        "v2", "v2-none", "v2-rounded-up", "v2-at-least-one", "v2-own-group", "v2-parent", "v2-least-of-all",
        "v2-not-a-sibling", "v2-mounted-below", "v2-other-container", "v2-outside", "v1-parent", "v1-none",
        "v1-mounted-below", "not-mounted",
    ],
)  # fmt: skip
def test_control_groups(
    native: ModuleType,
    tmp_path: Path,
    mounts: list[str],
    groups: list[str],
    files: dict[str, str],
    expected: int | None,
) -> None:
    assert native.read_cpu_quota(fake(tmp_path, mounts, groups, files)) == expected


def test_both_versions_at_once_count(native: ModuleType, tmp_path: Path) -> None:
    mounts, groups = [V2.format(root="/"), V1.format(root="/")], ["3:cpu,cpuacct:/a", "0::/u"]
    root = fake(tmp_path, mounts, groups, V1_MAX | {"u/cpu.max": "600000 100000"})
    assert native.read_cpu_quota(root) == 4


def test_no_proc_is_no_quota(native: ModuleType, tmp_path: Path) -> None:
    assert native.read_cpu_quota(str(tmp_path)) is None
