"""The tiers below the device: copies against memcpy and fio, restarts, first tokens, and what they cost decoding.

Every figure is checked before it is timed: bytes that came back are compared, and tokens are those of a run without
tiers. What each one means: docs/benchmarks.md.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvpager.bench import fio, tiers_disk, tiers_host, tiers_restart
from kvpager.bench.limits import native_module
from kvpager.bench.report import Result, report
from kvpager.bench.tiers_scale import FULL, QUICK, TierScale
from kvpager.errors import ConfigError

Part = Callable[[TierScale, Path], list[Result]]


def run(quick: bool = False, folder: str | None = None) -> dict[str, object]:
    """``folder``: where the disk tier is measured, left as it was (default: the system's temporary folder)."""
    return run_parts(list(PARTS), quick, folder)


def run_parts(names: list[str], quick: bool = False, folder: str | None = None) -> dict[str, object]:
    module = native_module()
    scale = QUICK if quick else FULL
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"the folder {folder!r} is not there: make it, or leave --folder out")
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="kvpager-bench-", dir=folder) as made:
        access = "direct" if tiers_disk.has_direct_access(Path(made)) else "buffered"
        for name in names:
            results += PARTS[name](scale, Path(made))
    tool = fio.version() if fio.is_installed() else "without fio"
    return report(
        "tiers",
        results,
        f"{module.isa()} kernels, {access} file access, {tool}",
        checks=["bytes that came back are those that went down", "tokens are those of a run without tiers"],
    )


def _host(scale: TierScale, folder: Path) -> list[Result]:
    return tiers_host.measure(scale)


def _disk(scale: TierScale, folder: Path) -> list[Result]:
    if not fio.is_installed():
        print(f"disk_read_fio_share and disk_write_fio_share are left out: {fio.REMEDY}", file=sys.stderr)
        return []
    return tiers_disk.measure(scale, folder)


def _model(scale: TierScale, folder: Path) -> list[Result]:
    """Nothing where what a model needs to run is not installed."""
    try:
        from kvpager.bench import tiers_model
    except ModuleNotFoundError as error:
        if error.name not in ("transformers", "safetensors"):
            raise
        return []
    return tiers_model.measure(scale, folder)


PARTS: dict[str, Part] = {"host": _host, "disk": _disk, "restart": tiers_restart.measure, "model": _model}
