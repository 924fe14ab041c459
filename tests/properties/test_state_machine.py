"""The same operations, chosen by hypothesis: it shrinks a contradiction to the few operations that make it."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.properties.world import SETTINGS, World


class CacheAgainstModel(RuleBasedStateMachine):
    """One rule an operation; each runs all checks. ``setting`` is given by a subclass."""

    setting = "full"

    def __init__(self) -> None:
        super().__init__()
        self.world = World(SETTINGS[self.setting])

    def teardown(self) -> None:
        self.world.finish()

    def _run(self, name: str, data: st.DataObject) -> None:
        self.world.run(name, lambda low, high: data.draw(st.integers(low, high)))

    @rule(data=st.data())
    def open_sequence(self, data: st.DataObject) -> None:
        self._run("open_sequence", data)

    @rule(data=st.data())
    def open_sequence_by_hand(self, data: st.DataObject) -> None:
        self._run("open_sequence_by_hand", data)

    @precondition(lambda self: self.world.models)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        self._run("append", data)

    @precondition(lambda self: self.world.models)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self._run("step", data)

    @precondition(lambda self: self.world.open_steps)
    @rule(data=st.data())
    def leave_step(self, data: st.DataObject) -> None:
        self._run("leave_step", data)

    @precondition(lambda self: self.world.models)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        self._run("fork", data)

    @precondition(lambda self: self.world.models)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        self._run("truncate", data)

    @precondition(lambda self: self.world.models)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self._run("free", data)

    @precondition(lambda self: self.world.models)
    @rule(data=st.data())
    def write_by_hand(self, data: st.DataObject) -> None:
        self._run("write_by_hand", data)

    @rule(data=st.data())
    def resize(self, data: st.DataObject) -> None:
        self._run("resize", data)

    @rule(data=st.data())
    def clear_prefix(self, data: st.DataObject) -> None:
        self._run("clear_prefix", data)


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_sequence_of_operations_contradicts_the_model(setting: str) -> None:
    machine = type("CacheAgainstModel", (CacheAgainstModel,), {"setting": setting})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
