"""The native module for tests of kernels: skipped, with the reason, where it was not built; and instruction sets."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType

import pytest
import torch

import kvpager.native

_MODULE = kvpager.native.module()
_ISAS = _MODULE.available_isas() if _MODULE else ["none"]  # worst first; "none" is skipped by `native`


@pytest.fixture(scope="session")
def native() -> ModuleType:
    """The compiled module; its absence is a failure in test_build.py where it could have been built."""
    if _MODULE is None:
        pytest.skip(f"no native kernels: {kvpager.native.why_not()}")
    return _MODULE


@pytest.fixture(params=_ISAS)
def isa(request: pytest.FixtureRequest, native: ModuleType) -> Iterator[str]:
    """Each instruction set of this build and processor in turn, active while the test runs."""
    before = native.isa()
    native.set_isa(request.param)
    yield request.param
    native.set_isa(before)


@pytest.fixture
def threads() -> Callable[[int], AbstractContextManager[None]]:
    """``with threads(3): ...`` computes with that many threads, whatever OMP_NUM_THREADS says.

    torch and the kernels share one OpenMP runtime, so torch's setting is theirs. A control group's quota still bounds
    the kernels: ask ``native.num_threads()`` where the number itself matters.
    """

    @contextmanager
    def with_threads(count: int) -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    return with_threads
