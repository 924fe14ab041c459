"""Contexts larger than the device: exact and selective attention over pages that lie in the host's memory or on a disk.

Every figure is checked before it is timed: exact attention gives the bits of the all-resident run. Shares are of what
this machine's memory and disk were measured to give in the same run, speedups of calls that ran in turn. What each one
means: docs/long-contexts.md.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvpager.bench import demand_exact, demand_faults, demand_selective, demand_table, fio, tiers_disk
from kvpager.bench.demand_scale import FULL, QUICK, DemandScale
from kvpager.bench.limits import native_module
from kvpager.bench.report import Result, report
from kvpager.errors import ConfigError, ModelError

Part = Callable[[DemandScale, Path], list[Result]]


def run(quick: bool = False, folder: str | None = None) -> dict[str, object]:
    """``folder``: where the disk tier is measured, left as it was (default: the system's temporary folder)."""
    return run_parts(list(PARTS), quick, folder)


def run_parts(names: list[str], quick: bool = False, folder: str | None = None) -> dict[str, object]:
    module = native_module()
    scale = QUICK if quick else FULL
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"the folder {folder!r} is not there: make it, or leave --folder out")
    results: list[Result] = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="kvpager-bench-", dir=folder) as made:
            access = "direct" if tiers_disk.has_direct_access(Path(made)) else "buffered"
            results += PARTS[name](scale, Path(made))
    setting = (
        f"{module.isa()} kernels, {module.num_threads()} threads, {access} file access, "
        f"{scale.page_size} tokens a page unless a name says so"
    )
    return report(
        "demand", results, setting, checks=["exact attention has the bits of the run in which all pages are resident"]
    )


def _disk(scale: DemandScale, folder: Path) -> list[Result]:
    if not fio.is_installed():
        print(f"exact_disk_7of8_fio_share is left out: {fio.REMEDY}", file=sys.stderr)
        return []
    return demand_exact.disk(scale, folder)


def _needle(scale: DemandScale, folder: Path) -> list[Result]:
    """Nothing where what the model needs is not installed, or it was not fetched."""
    try:
        from kvpager.bench import needle

        return [needle.selective_needle_recall(quick=scale == QUICK)]
    except ModuleNotFoundError as error:
        if error.name not in ("transformers", "safetensors"):
            raise
    except ModelError as error:
        print(f"selective_needle_recall is left out: {error}", file=sys.stderr)
    return []


def _neighbours(scale: DemandScale, folder: Path) -> list[Result]:
    """Nothing where what a model needs to run is not installed."""
    try:
        from kvpager.bench import demand_neighbours
    except ModuleNotFoundError as error:
        if error.name not in ("transformers", "safetensors"):
            raise
        return []
    return demand_neighbours.neighbours(scale, folder)


PARTS: dict[str, Part] = {
    "exact_host": demand_exact.host,
    "exact_disk": _disk,
    "selective_resident": demand_selective.resident,
    "selective_disk": demand_selective.disk,
    "needle": _needle,
    "page_table": demand_table.page_table,
    "faults": demand_faults.faults,
    "neighbours": _neighbours,
}
