"""What every kernel builds on: the choice of instruction set, and threads shared with torch."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType

import numpy as np
import pytest


def test_the_best_instruction_set_is_active(native: ModuleType) -> None:
    assert native.available_isas()[0] == "portable"
    assert native.isa() in native.available_isas()


def test_an_instruction_set_is_chosen_by_name(native: ModuleType, isa: str) -> None:
    assert native.isa() == isa


def test_an_unknown_instruction_set_is_refused(native: ModuleType) -> None:
    with pytest.raises(ValueError, match="'sse9' is not one"):
        native.set_isa("sse9")


def test_threads_follow_torch(native: ModuleType, threads: Callable[[int], AbstractContextManager[None]]) -> None:
    allowed = []
    for count in (1, 2):
        with threads(count):
            allowed.append(native.num_threads())
    assert allowed[0] == 1
    assert allowed[1] in (1, 2)  # 1 where a control group allows one CPU


@pytest.mark.parametrize("size", [0, 1, 63, 129, 4096, 100_003])
def test_reading_covers_every_byte(native: ModuleType, isa: str, size: int) -> None:
    data = np.zeros(size, dtype=np.uint8)
    zeros = native.read_bytes(data.ctypes.data, size, 2)
    assert zeros == 0
    for at in {0, size // 2, size - 1} - {-1} if size else ():
        data[at] = 1
        assert native.read_bytes(data.ctypes.data, size, 2) != 0
        data[at] = 0


def test_a_limit_that_can_not_be_measured_is_refused(native: ModuleType) -> None:
    with pytest.raises(ValueError, match="threads"):
        native.read_bytes(0, 0, 0)
    with pytest.raises(ValueError, match="bytes"):
        native.read_bytes(0, -1, 1)
