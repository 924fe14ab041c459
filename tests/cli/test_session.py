"""Opening an engine: what is missing is named, and waiting threads sleep unless the user wants otherwise."""

import os
import subprocess
import sys

import pytest

from kvpager.cli.session import Interruption


def _run(code: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**inherited, **environment}
    )


@pytest.mark.parametrize("missing", ["transformers", "json"])
def test_without_transformers_the_extra_is_named(missing: str) -> None:
    code = "import sys; from kvpager.cli.main import main; from kvpager.cli.session import open_engine\n"
    code += f"sys.modules[{missing!r}] = None; sys.exit(main(['run', 'hi']))"
    done = _run(code)
    if missing == "transformers":
        assert (done.returncode, done.stdout) == (2, "")
        assert "running a model needs the package 'transformers': pip install 'kvpager[hf]'" in done.stderr
    else:  # anything else that is missing is a broken installation, and keeps its traceback
        assert done.returncode == 1
        assert "ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize(("given", "found"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_threads_sleep_unless_the_user_says_otherwise(given: dict[str, str], found: str) -> None:
    code = "import subprocess; from kvpager.cli.session import _let_waiting_threads_sleep\n"
    code += "_let_waiting_threads_sleep(); subprocess.run(['sh', '-c', 'echo $OMP_WAIT_POLICY'])"
    assert _run(code, **given).stdout.split() == [found]


def test_an_interruption_is_asked_for_between_steps() -> None:
    interruption = Interruption()
    interruption.check()
    interruption.ask(2, None)
    with pytest.raises(KeyboardInterrupt):
        interruption.check()
