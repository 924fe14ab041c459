"""The engines that kvpager is compared with: their scripts, and the interpreters that these run in.

A peer has a virtual environment of its own under one folder (`make peers`), for their requirements exclude each other.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from kvpager.bench.peer_scale import AT_ONCE
from kvpager.errors import ConfigError

OURS = "kvpager"
THREADS = 2
_SETTINGS = (f"OMP_NUM_THREADS={THREADS}", "PYTHONPATH=")
_VLLM = (
    f"VLLM_CPU_OMP_THREADS_BIND=0-{THREADS - 1}",  # "auto" leaves one of two cores unused
    "VLLM_CPU_KVCACHE_SPACE=1",  # GiB; the number of blocks is overridden
    "VLLM_ENABLE_V1_MULTIPROCESSING=0",
    "VLLM_NO_USAGE_STATS=1",
    "HF_HUB_OFFLINE=1",
    "LD_PRELOAD={folder}/vllm/lib/libiomp5.so",  # as its documentation advises
)
_RUNNERS = Path(__file__).parent / "peer_runners"


@dataclass(frozen=True, slots=True)
class Peer:
    """``needs``: the files, under the folder of all peers, without which it can't run; the first is its interpreter,
    none: this one. ``variant``: which of a script's ways to run. ``settings``: its environment, beyond everybody's.
    ``only``: the workloads that it is asked for; None: all."""

    name: str
    script: str
    needs: tuple[str, ...] = ()
    variant: str = ""
    settings: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None

    def command(self, folder: Path) -> list[str]:
        python = str(folder.absolute() / self.needs[0]) if self.needs else sys.executable
        settings = [each.format(folder=folder.absolute()) for each in self.settings]
        return ["env", *_SETTINGS, *settings, python, str(_RUNNERS / self.script)]

    def lacks(self, folder: Path) -> str | None:
        """Why it can't be had, in words; None: it can."""
        missing = [need for need in self.needs if not (folder / need).exists()]
        if not missing:
            return None
        return f"{folder / missing[0]} is not there; `make peers` makes it, or name another folder with --folder"


# A static batch, padded to its longest: what it can do shows where requests are alike and there at once.
_ALIKE = ("1x128", "32x128", AT_ONCE)

# The fastest on record come first: what they need is what the others are given time after (bench/peer_contest.py).
_ALL = (
    Peer(OURS, "run_kvpager.py"),
    Peer("openvino", "run_openvino.py", ("openvino/bin/python", "smollm2-f16.gguf")),
    Peer("llama_cpp", "run_llama_cpp.py", ("openvino/bin/python", "llama_cpp/bin/llama-server", "smollm2-f16.gguf")),
    Peer("vllm", "run_vllm.py", ("vllm/bin/python",), settings=_VLLM),
    Peer("transformers_continuous", "run_transformers_continuous.py", ("transformers/bin/python",)),
    Peer("transformers", "run_transformers.py", ("transformers/bin/python",), only=_ALIKE),
    Peer("transformers_float32", "run_transformers.py", ("transformers/bin/python",), variant="float32", only=_ALIKE),
)
REFERENCE = Peer("reference", "run_transformers.py")
PEERS = {peer.name: peer for peer in _ALL}


def chosen(names: str | None) -> list[Peer]:
    """Ours, and those of a list with commas; None: all. Raises ConfigError for one that is not known."""
    wanted = list(PEERS) if names is None else [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in PEERS]
    if unknown:
        raise ConfigError(f"unknown peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    return [peer for peer in _ALL if peer.name == OURS or peer.name in wanted]
