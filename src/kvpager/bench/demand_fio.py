"""How fast fio reads files of a folder at best: block sizes and numbers of threads are tried, the fastest ones stay.

Reads of each size and number come from one file, as long as four reads together, one range after the other.
"""

import itertools
import statistics
from pathlib import Path

from kvpager.bench.fio import FioFile
from kvpager.bench.tiers_disk import has_direct_access

_JOBS = (2, 4, 8)
_LARGE_BLOCK = 1 << 20
_RANGES = 4
_ALIGNMENT = 4096


class BestRead:
    """``read`` gives the seconds that ``num_bytes`` take. ``block_bytes``: one of the sizes that are tried."""

    def __init__(self, path: Path, num_bytes: int, block_bytes: int, rounds: int) -> None:
        self._num_bytes, self._turn = num_bytes, 0
        sizes = sorted({-(-block_bytes // _ALIGNMENT) * _ALIGNMENT, _LARGE_BLOCK})
        is_direct = has_direct_access(path.parent)
        files = []
        for block, jobs in itertools.product(sizes, _JOBS):
            count = -(-num_bytes // block)
            files.append(FioFile(path, (_RANGES * count + jobs) * block, block, jobs, is_direct))
        longest = max(files, key=lambda file: file.file_bytes)
        longest.write(0, longest.file_bytes // longest.block_bytes)
        times: dict[FioFile, list[float]] = {file: [] for file in files}
        for _ in range(rounds):
            for file in files:
                times[file].append(self._read(file))
        self.best = min(files, key=lambda file: statistics.median(times[file]))

    def read(self) -> float:
        return self._read(self.best)

    def _read(self, file: FioFile) -> float:
        count = -(-self._num_bytes // file.block_bytes)
        self._turn = (self._turn + 1) % _RANGES
        return file.read(self._turn * count, count) * self._num_bytes / (count * file.block_bytes)
