"""What policies know the pages of a trace by, in place of the heads of content keys."""

import numpy as np


def page_keys(num_pages: int) -> np.ndarray:
    """uint64[num_pages]: distinct and well spread, as the heads of content keys are (splitmix64; Steele, Lea and Flood
    2014)."""
    keys = np.arange(1, num_pages + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))
