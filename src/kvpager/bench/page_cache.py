"""Takes files out of the system's page cache, so that a benchmark reads what a restart would."""

import os
from pathlib import Path


def out_of_page_cache(folder: Path) -> None:
    """What is read next comes from the device below the file system."""
    for file in folder.iterdir():
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
