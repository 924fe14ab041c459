"""Stated hardware and models as a cost model: data sheets, and the shares of them that are assumed to be reached.

    weights   weight bytes / (bandwidth * share)
    kv        bytes of a token's K and V / (bandwidth * share)
    sent      bytes of a token's K and V / (link * share)
    token     2 * parameters / (arithmetic * share)
    pair      4 * query heads * head_dim * layers / (arithmetic * share)

Memory for K and V is what ``memory_share`` of the device leaves beside the weights. Knows no requests.
"""

from dataclasses import dataclass

from kvpager.errors import ConfigError
from kvpager.simulator.service_cost import CostModel


@dataclass(frozen=True, slots=True)
class Hardware:
    """All devices of one server together: ``memory`` bytes, ``bandwidth`` of it and ``link`` to the host's memory in
    bytes a second (one direction), ``arithmetic`` in bf16 operations a second (dense). ``fixed`` seconds a step and
    ``row`` seconds for each sequence in it, for what is not on the device. ``source`` of the figures."""

    name: str
    memory: float
    bandwidth: float
    arithmetic: float
    link: float
    host_memory: float
    fixed: float
    row: float
    source: str
    memory_share: float = 0.9
    bandwidth_share: float = 0.8
    arithmetic_share: float = 0.6
    attention_share: float = 0.5  # of the arithmetic, in the attention of prompts
    link_share: float = 0.8


@dataclass(frozen=True, slots=True)
class ServedModel:
    """``parameters``, in bf16; attention of ``layers`` with ``query_heads`` and ``kv_heads`` of ``head_dim``."""

    name: str
    parameters: float
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int

    @property
    def weight_bytes(self) -> float:
        return 2 * self.parameters

    @property
    def kv_bytes(self) -> int:
        """K and V of one token, bf16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


def kv_capacity(hardware: Hardware, model: ServedModel) -> int:
    """Tokens of K and V that fit on the device. Raises ConfigError where not even the weights do."""
    left = hardware.memory_share * hardware.memory - model.weight_bytes
    if left < model.kv_bytes:
        raise ConfigError(f"{model.name} leaves no room for K and V on {hardware.name}; take more devices")
    return int(left // model.kv_bytes)


def costs_of(hardware: Hardware, model: ServedModel) -> CostModel:
    bandwidth = hardware.bandwidth * hardware.bandwidth_share
    pair = 4 * model.query_heads * model.head_dim * model.layers
    return CostModel(
        fixed=hardware.fixed,
        row=hardware.row,
        weights=model.weight_bytes / bandwidth,
        token=2 * model.parameters / (hardware.arithmetic * hardware.arithmetic_share),
        kv=model.kv_bytes / bandwidth,
        pair=pair / (hardware.arithmetic * hardware.attention_share),
        sent=model.kv_bytes / (hardware.link * hardware.link_share),
    )


_H200 = "NVIDIA H200 Tensor Core GPU data sheet: 141 GB, 4.8 TB/s, 989 TFLOP/s dense bf16, PCIe Gen5 64 GB/s each way"
H200 = Hardware("1 x H200 SXM", 141e9, 4.8e12, 989e12, 64e9, 1.5e12, 1e-3, 5e-6, _H200)
H200_PAIR = Hardware("2 x H200 SXM", 282e9, 9.6e12, 1978e12, 128e9, 1.5e12, 2.5e-3, 5e-6, _H200)

LLAMA_8B = ServedModel("Llama 3.1 8B", 8.03e9, 32, 32, 8, 128)
LLAMA_70B = ServedModel("Llama 3.1 70B", 70.55e9, 80, 64, 8, 128)
