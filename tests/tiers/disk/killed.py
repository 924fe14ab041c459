"""Run as a program: the same work again and again, each time ended by kill -9 at another call of the file system.

    python killed.py FOLDER SEED        writes FOLDER/<number>-<before|after>/ and prints how many calls there are

The parent only forks, so it stays small and has one thread.
"""

import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.tiers.disk.faulty_files import FaultyFiles, kill_after, kill_before
from tests.tiers.disk.pages import open_store, put

CAPACITY = 45 * 8192  # 9 slabs of 4 pages


def work(folder: Path, files: FaultyFiles, seed: int) -> None:
    """Stores 50 pages, of which at least 10 are dropped, and closes."""
    rng = random.Random(seed)
    store = open_store(folder, CAPACITY, files=files)
    number = 0
    while number < 50:
        batch = range(number, min(50, number + rng.randint(4, 12)))
        put(store, *batch)
        number = batch.stop
    store.close()


def main() -> None:
    base, seed = Path(sys.argv[1]), int(sys.argv[2])
    counted = FaultyFiles()
    work(base / "whole", counted, seed)
    for number in range(counted.num_calls):
        for name, fault in (("before", kill_before), ("after", kill_after)):
            child = os.fork()
            if child == 0:
                work(base / f"{number}-{name}", FaultyFiles(fault=fault, first=number), seed)
                os._exit(0)
            os.waitpid(child, 0)
    print(counted.num_calls)


if __name__ == "__main__":
    main()
