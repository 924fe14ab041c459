"""How long ago something was last asked for, in classes that double: below 1 s, 1 to 2 s, 2 to 4 s, ..."""

import numpy as np

NUM_BUCKETS = 24  # the last one has no upper end: above 2**22 s, seven weeks


def bucket_of(age: float) -> int:
    """The class of an age in seconds."""
    return min(int(age).bit_length(), NUM_BUCKETS - 1)


def count_ages(ages: np.ndarray) -> np.ndarray:
    """int64[NUM_BUCKETS]: how many ages, seconds, are in each class."""
    whole = np.minimum(ages, 2.0**NUM_BUCKETS).astype(np.int64)
    classes = np.frexp(whole.astype(np.float64))[1]  # the bit length
    found: np.ndarray = np.bincount(np.minimum(classes, NUM_BUCKETS - 1), minlength=NUM_BUCKETS)
    return found


def bucket_start(bucket: int) -> int:
    """The youngest age in a class, seconds."""
    return 0 if bucket == 0 else 1 << (bucket - 1)
