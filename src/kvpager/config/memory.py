"""How much memory of the host this process may use, and how much of it ``auto`` takes.

Control groups count: a container sees its own limit. Does not know a device's memory.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvpager.config.sizes import AUTO, format_size, parse_size
from kvpager.errors import ConfigError

AUTO_POOL_PERCENT = 70  # of the free memory: the rest is for activations, logits and what other programs take meanwhile
AUTO_HOST_PERCENT = 25  # of all memory, for copies of pages
_SPARED_PERCENT = 15  # of what is free beside the pool: never taken by the host tier


def auto_pool_size(available: int) -> int:
    """What ``capacity = "auto"`` means where ``available`` bytes are free: 70 % of them, in bytes.

    The choice is inside the usual 60-80 %. Measure ``available`` after the model is loaded, on the device that holds
    the pool. Raises ConfigError if nothing is free.
    """
    size = available * AUTO_POOL_PERCENT // 100
    if size < 1:
        raise ConfigError("no memory is free for the pool; free some, or give 'capacity' as a size in bytes")
    return size


def resolve_capacity(capacity: str | int, available: int) -> int:
    """The pool size in bytes that ``capacity`` asks for: ``"auto"``, a size, or a percentage of ``available`` bytes.

    Raises ConfigError as ``parse_size`` and ``auto_pool_size`` do.
    """
    if isinstance(capacity, str) and capacity.strip().lower() == AUTO:
        return auto_pool_size(available)
    return parse_size(capacity, total=available)


def auto_host_size(total: int, free: int) -> int:
    """What the host tier takes by itself, bytes: a quarter of all memory, and never more than 85 % of what is free.

    ``total``: what this process may ever use; ``free``: what it could still take, the pool taken off.
    """
    return max(0, min(total * AUTO_HOST_PERCENT // 100, free * (100 - _SPARED_PERCENT) // 100))


def resolve_host_capacity(capacity: str | int, pool_bytes: int = 0, root: Path = Path("/")) -> int:
    """The bytes of a host tier: ``"auto"``, a size, or a percentage of all memory.

    ``pool_bytes``: what a pool in the same memory will take and has not taken yet. Raises ConfigError as
    ``parse_size`` does, and for more than this process may ever use, which would end it one day.
    """
    total = total_memory(root)
    if isinstance(capacity, str) and capacity.strip().lower() == AUTO:
        size = auto_host_size(total, available_memory(root) - pool_bytes)
        if size < 1:
            raise ConfigError("no memory is free for a host tier; make the pool smaller, or leave the tier out")
        return size
    size = parse_size(capacity, total=total)
    if size > total:
        raise ConfigError(
            f"a host tier of {format_size(size)} is more than the {format_size(total)} that this process may use; "
            "make it smaller"
        )
    return size


@dataclass(frozen=True, slots=True)
class _Limit:
    """One memory limit of a control group, bytes: what it allows, and what of that is taken and can't be dropped."""

    allowed: int
    taken: int


def total_memory(root: Path = Path("/")) -> int:
    """The memory of this host that this process may ever use, bytes: the host's, or less where a cgroup says so.

    ``root`` is where ``proc`` and ``sys`` are looked for. Raises ConfigError where the host doesn't tell.
    """
    limits = [limit.allowed for limit in _cgroup_limits(root)]
    return min([_meminfo(root, "MemTotal"), *limits])


def available_memory(root: Path = Path("/")) -> int:
    """The memory of this host that this process could still take without swapping, bytes; 0 if there is none.

    The least of the host's available memory and of what is left in each cgroup around the process (version 1 and 2,
    file cache that can be dropped counted as free). ``root`` and errors as for ``total_memory``.
    """
    left = [limit.allowed - limit.taken for limit in _cgroup_limits(root)]
    return max(0, min([_meminfo(root, "MemAvailable"), _meminfo(root, "MemTotal"), *left]))


def _meminfo(root: Path, name: str) -> int:
    """A line of /proc/meminfo (``MemTotal:  16384 kB``), bytes."""
    try:
        text = (root / "proc/meminfo").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(f"{name}:"))
    except (OSError, StopIteration, ValueError, IndexError) as error:
        raise ConfigError(
            f"this host doesn't say how much memory it has (no {name} in /proc/meminfo); give 'capacity' in bytes"
        ) from error


def _cgroup_limits(root: Path) -> Iterator[_Limit]:
    """Every limit on this process, of its own group and of the groups around it; none outside a cgroup."""
    mounts = root / "sys/fs/cgroup"
    for controllers, group in _own_groups(root):
        if not controllers:  # version 2 has one hierarchy, mounted beside version 1 or alone
            for folder in (*_folders(mounts, group), *_folders(mounts / "unified", group)):
                yield from _read_limit(folder, ("memory.max", "memory.high"), "memory.current", "inactive_file")
        elif "memory" in controllers:
            for folder in _folders(mounts / "memory", group):
                yield from _read_limit(
                    folder, ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"
                )


def _own_groups(root: Path) -> Iterator[tuple[list[str], str]]:
    """The lines of /proc/self/cgroup, ``4:memory,cpu:/a/b``, as (controllers, group)."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        yield [name for name in controllers.split(",") if name], group


def _folders(mount: Path, group: str) -> list[Path]:
    """The folders of ``group`` and of all groups around it. A container may see only its own group, as the mount."""
    parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _read_limit(folder: Path, limits: Iterable[str], usage: str, droppable: str) -> Iterator[_Limit]:
    allowed = [value for value in (_read_number(folder / name) for name in limits) if value is not None]
    if allowed:
        taken = (_read_number(folder / usage) or 0) - _read_stat(folder / "memory.stat", droppable)
        yield _Limit(min(allowed), max(0, taken))


def _read_number(path: Path) -> int | None:
    """The number in a cgroup file; None if there is no such file, or no limit (``max``)."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_stat(path: Path, name: str) -> int:
    try:
        return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.split()[:1] == [name])
    except (OSError, StopIteration, ValueError, IndexError):
        return 0
