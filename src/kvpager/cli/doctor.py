"""What this machine offers, and what is missing with the command that gets it; ends with a small test of the pool.

Exit code 1 if the test fails.
"""

import argparse
import json
import os
import platform
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path

from kvpager import native
from kvpager.cli.arguments import add_common, chosen_options
from kvpager.config import (
    AUTO_HOST_PERCENT,
    DiskTier,
    HostTier,
    Options,
    RemoteTier,
    TierOptions,
    auto_host_size,
    available_memory,
    format_size,
    parse_size,
    resolve_host_capacity,
    total_memory,
)
from kvpager.errors import KVPagerError
from kvpager.tiers.remote.shown_url import shown_url
from kvpager.version import __version__

Section = dict[str, object]

_CPU_FEATURES = (  # what the arithmetic of attention and of models can use, by the names Linux gives them
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?P<version>[^;]*)(?:;\s*extra\s*==\s*['\"](?P<extra>[\w-]+)['\"])?"
)
_TIER_NAMES: dict[type, str] = {HostTier: "host", DiskTier: "disk", RemoteTier: "remote"}
_NOT_FOR_USERS = {"dev", "docs", "all"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, names=("model", "device", "attention", "native", "tiers"))


def run(arguments: argparse.Namespace) -> int:
    options = chosen_options(arguments)
    report = examine(options)
    print(json.dumps(report, indent=2) if arguments.json else format_report(report))
    test = report["self-test"]
    return 0 if test.get("result") == "passed" else 1


def examine(options: Options) -> dict[str, Section]:
    """Everything the command shows, by section."""
    return {
        "system": _system(),
        "memory": _memory(),
        "packages": _packages(),
        "devices": _devices(options),
        "native": _native(options),
        "attention": _attention(options),
        "models": _models(options),
        "tiers": _tiers(options),
        "self-test": _self_test(),
    }


def format_report(report: dict[str, Section]) -> str:
    lines = []
    for title, section in report.items():
        lines.append(title)
        width = max((len(name) for name in section), default=0)
        lines += [f"  {name.ljust(width)}  {_as_text(value)}".rstrip() for name, value in section.items()]
    return "\n".join(lines)


def _as_text(value: object) -> str:
    return " ".join(str(item) for item in value) if isinstance(value, list) else str(value)


# -- sections ------------------------------------------------------------------------------------------------------


def _system() -> Section:
    return {
        "kvpager": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_line("model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "features": _cpu_features(),
    }


def _cpu_line(name: str) -> str:
    """The first line of /proc/cpuinfo with this name; empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _cpu_features() -> list[str]:
    flags = set((_cpu_line("flags") or _cpu_line("Features")).split())
    return [name for name in _CPU_FEATURES if name in flags]


def _memory() -> Section:
    """Of the host or of the control group around this process, whichever is less."""
    try:
        total, available = total_memory(), available_memory()
    except KVPagerError as error:
        return {"unknown": str(error)}
    return {
        "total": format_size(total),
        "available": format_size(available),
        "host tier 'auto'": f"{format_size(auto_host_size(total, available))} ({AUTO_HOST_PERCENT} % of the total, "
        "within what is available beside the pool)",
    }


def _packages() -> Section:
    """Installed versions of what kvpager needs; for what is missing, the command that installs it."""
    found: Section = {}
    for line in metadata.requires("kvpager") or []:
        requirement = _REQUIREMENT.match(line)
        if requirement is None or requirement["extra"] in _NOT_FOR_USERS:
            continue
        name, extra = requirement["name"], requirement["extra"]
        wanted = "kvpager" if extra is None else f"kvpager[{extra}]"
        try:
            found[name] = metadata.version(name) + ("" if extra is None else f"  [{extra}]")
        except metadata.PackageNotFoundError:
            found[name] = f"missing: pip install '{wanted}'"
    return found


def _devices(options: Options) -> Section:
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways, and this command is for finding that out
        return {"torch": f"can't be imported: {error}"}
    found: Section = {"cpu": f"{torch.get_num_threads()} threads"}
    if not torch.cuda.is_available():
        found["cuda"] = "none that this build of torch can use"
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(number)
        found[f"cuda:{number}"] = (
            f"{torch.cuda.get_device_name(number)}, {format_size(free)} of {format_size(total)} free"
        )
    chosen = options.device
    if chosen == "auto":
        chosen = "cuda" if torch.cuda.is_available() else "cpu"
    return found | {"chosen": _try(lambda: str(torch.empty(0, device=chosen).device))}


def _native(options: Options) -> Section:
    """The native kernels of this build: which instruction set runs, on which threads, or why there are none."""
    try:
        native.choose(options.native)
    except KVPagerError as error:
        return {"kernels": f"can't be used: {error}"}
    module = native.module()
    if module is None:
        return {"kernels": f"none, torch computes: {native.why_not()}"}
    return {
        "kernels": str(module.__file__),
        "active": module.isa(),
        "why": _whose_choice("native", options.native),
        "available": module.available_isas(),
        "threads": module.num_threads(),
        "openmp": _openmp(),
    }


def _openmp() -> str:
    """The OpenMP runtime that torch and the kernels share; that there are several, if they don't share one."""
    with suppress(Exception):  # reported in another section
        import torch  # noqa: F401 - brings its own
    try:
        mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    except OSError:
        return "unknown: this system doesn't say which libraries are loaded"
    found = sorted(path for path in mapped if re.match(r"lib(gomp|omp|iomp5)\b", Path(path).name))
    if len(found) > 1:
        return f"not shared, so that threads get into each other's way: {' '.join(found)}"
    return f"shared with torch: {' '.join(found)}"


def _whose_choice(option: str, value: str) -> str:
    return "the best that works here" if value == "auto" else f"by option {option!r}"


def _attention(options: Options) -> Section:
    try:
        from kvpager.attention.select import backends, select
    except Exception as error:
        return {"backends": f"can't be imported: {error}"}
    found: Section = {
        each.name: "available" if each.is_available else f"not available: {each.reason}" for each in backends()
    }
    found["chosen"] = _try(lambda: select(name=options.attention).name)
    return found | {"why": _whose_choice("attention", options.attention)}


def _models(options: Options) -> Section:
    try:
        from kvpager.models.fetch import list_models
        from kvpager.models.source import resolve
        from kvpager.models.store import models_home

        stored: Section = {model.name: _state(model.state.value, model.size, model.name) for model in list_models()}
        return {"folder": str(models_home()), **stored, "chosen": _try(lambda: str(resolve(options.model).path))}
    except Exception as error:
        return {"models": f"can't be listed: {error}"}


def _tiers(options: Options) -> Section:
    """What has been asked for below the device, and whether there is room for it. Opens nothing."""
    if not options.tiers:
        return {"none": "--tier host=auto would keep what the pool drops; docs/tiers.md says which is for what"}
    return {_TIER_NAMES[type(tier)]: _try(partial(_room_for, tier)) for tier in options.tiers}


def _room_for(tier: TierOptions) -> str:
    if isinstance(tier, HostTier):
        return f"{format_size(resolve_host_capacity(tier.capacity))} of memory, the pool not counted"
    if isinstance(tier, RemoteTier):
        package = "redis" if tier.url.startswith("redis") else "obstore"
        return f"{shown_url(tier.url)}, through {package} {metadata.version(package)}"
    folder = Path(tier.folder).absolute()
    exists = next(path for path in (folder, *folder.parents) if path.exists())
    free, limit = shutil.disk_usage(exists).free, format_size(parse_size(tier.capacity))
    return (
        f"{folder}{'' if exists == folder else ' (new)'}, at most {limit}; {format_size(free)} free on its file system"
    )


def _try(question: Callable[[], str]) -> str:
    """The answer, or why there is none."""
    try:
        return question()
    except Exception as error:
        return f"can't be used: {' '.join(str(error).split())}"


def _state(state: str, size: int, name: str) -> str:
    return f"{state}, {format_size(size)}" if state == "ready" else f"{state}: kvpager model fetch {name}"


# -- the test ------------------------------------------------------------------------------------------------------


def _self_test() -> Section:
    """Writes two pages, forks, writes the fork, and compares every byte of both with what it should be."""
    try:
        _write_fork_and_compare()
    except Exception as error:
        return {"result": "failed", "reason": f"{type(error).__name__}: {error}"}
    return {"result": "passed", "what": "wrote pages, forked, copied on write, compared all bytes, freed"}


def _write_fork_and_compare() -> None:
    import torch

    from kvpager import KVLayout, open_cache

    layout = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype="float32", page_size=4)
    rows = torch.arange(2 * 6 * 2 * 8, dtype=torch.float32).reshape(2, 6, 2, 8)  # [layers, tokens, heads, dim]
    with open_cache(layout, num_blocks=8) as cache:
        first = cache.sequence()
        first.write(0, rows, -rows)
        second = first.fork()
        second.write(5, rows[:, :1], rows[:, :1])
        changed_k, changed_v = rows.clone(), -rows
        changed_k[:, 5], changed_v[:, 5] = rows[:, 0], rows[:, 0]
        _compare(first.read(0, 6), (rows, -rows), "the first sequence")
        _compare(second.read(0, 6), (changed_k, changed_v), "its fork")
        cache.check()
        first.free()
        second.free()
        if cache.pool.num_free != 8:
            raise RuntimeError(f"{8 - cache.pool.num_free} of 8 blocks were not given back")


def _compare(read: object, expected: tuple[object, object], whose: str) -> None:
    import torch

    for name, got, wanted in zip("KV", read, expected, strict=True):  # type: ignore[call-overload]
        if not torch.equal(got, wanted):
            raise RuntimeError(f"{name} of {whose} is not what was written")
