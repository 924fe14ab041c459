"""What a user asks for below the device: one small object per tier, given to ``open_cache(tiers=[...])``.

They hold settings only. The tiers themselves are opened by assemble.py, which knows the size of a page.
"""

from dataclasses import dataclass
from pathlib import Path

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class HostTier:
    """Copies in ordinary memory; pinned where the device is a GPU.

    ``capacity``: bytes (``"8 GiB"``), or ``"auto"``: a quarter of what the machine, or its control group, has.
    ``pages``: instead of a capacity, how many pages.
    """

    capacity: int | str = AUTO
    pages: int | None = None


@dataclass(frozen=True, slots=True)
class DiskTier:
    """Copies in files of ``folder``, which outlive the process. ``capacity``: all that the folder may hold, in bytes.

    ``read_only``: use what another process keeps there, and write nothing.
    """

    folder: str | Path
    capacity: int | str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class RemoteTier:
    """Copies in a store that others share: ``redis://host:port/0``, ``s3://bucket/prefix``, ``gs://``, ``az://``,
    ``memory://``. ``deadline``: seconds a request may take.
    """

    url: str
    deadline: float = 1.0


TierOptions = HostTier | DiskTier | RemoteTier
