"""A decoder's whole pass as one native call (csrc/decoder_step.h): no Python and no torch between matrix products.

The same roundings in the same order as the layers one by one (fused_layers.py): where the products have equal bits, so
have the logits. Knows no requests and no cache; the weights are borrowed, and may change in place.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvpager.attention.backend import LayerOptions
from kvpager.attention.cpu import PlainStep
from kvpager.integrations.decoder_layers import Decoder, DecoderLayer, Projection
from kvpager.integrations.layer_buffers import Widths
from kvpager.integrations.native_matrix import native_matrix
from kvpager.integrations.rotary_table import RotaryTable

DTYPES = (torch.float32, torch.bfloat16)


class NativeStep:
    """``options``: of each layer. REQUIRES: the weights are of one of DTYPES."""

    def __init__(
        self, decoder: Decoder, options: Sequence[LayerOptions], widths: Widths, table: RotaryTable, kernels: Any
    ) -> None:
        self._kernels, self.table = kernels, table
        self.borrowed: list[Tensor] = []
        self._outputs, self._dtype = len(decoder.head.weight), decoder.head.weight.dtype
        self.native = kernels.DecoderStep(
            embedding=self._matrix(decoder.embedding.weight),
            layers=[self._layer(*each, widths) for each in zip(decoder.layers, options, strict=True)],
            norm=self._row(decoder.norm.weight),
            epsilon=decoder.norm.variance_epsilon,
            head=self._matrix(decoder.head.weight),
            query_heads=widths.query_heads,
            kv_heads=widths.kv_heads,
            head_dim=widths.head_dim,
        )

    def forward(self, ids: Tensor, positions: Tensor, plain: PlainStep, keep: Tensor, threads: int = 0) -> Tensor:
        """Logits [len(keep), vocab], as FusedDecoder.forward; ``threads`` 0: as many as pay."""
        logits = torch.empty(len(keep), self._outputs, dtype=self._dtype)
        places = positions.numpy()
        self.native.run(
            ids=ids.numpy(),
            positions=places,
            keep=keep.numpy(),
            rotary=self.table.up_to(int(places.max(initial=0)) + 1).rotary,
            caches=plain.caches,
            group_of=plain.group_of,
            slots=plain.slots,
            plans=plain.plans,
            logits=native_matrix(self._kernels, logits),
            threads=threads,
        )
        return logits

    def _layer(self, parts: DecoderLayer, options: LayerOptions, widths: Widths) -> Any:
        sinks = options.sinks
        if sinks is not None:
            sinks = sinks.detach().to(torch.float32).contiguous()
            self.borrowed.append(sinks)
        given = {
            "input_norm": self._row(parts.input_norm.weight),
            "input_epsilon": parts.input_norm.variance_epsilon,
            "post_norm": self._row(parts.post_norm.weight),
            "post_epsilon": parts.post_norm.variance_epsilon,
            "has_rotary": parts.has_rotary,
            "scale": widths.head_dim**-0.5 if options.scale is None else options.scale,
            "softcap": options.softcap or 0.0,
            "sinks": 0 if sinks is None else sinks.data_ptr(),
        }
        if parts.head_norms is not None:
            for name, norm in zip(("query", "key"), parts.head_norms, strict=True):
                given |= {f"{name}_norm": self._row(norm.weight), f"{name}_epsilon": norm.variance_epsilon}
        products = {"qkv": parts.qkv, "output": parts.output, "gate_up": parts.gate_up, "down": parts.down}
        for name, projection in products.items():
            given |= self._linear(name, projection)
        return self._kernels.DecoderLayer(**given)

    def _linear(self, name: str, projection: Projection) -> dict[str, Any]:
        bias = projection.bias
        return {
            name: self._matrix(projection.weight),
            f"{name}_bias": None if bias is None else self._row(bias),
        }

    def _row(self, weight: Any) -> Any:
        return self._matrix(weight[None])

    def _matrix(self, weight: Tensor) -> Any:
        rows = weight.detach()  # the same memory, whatever becomes of the parameter
        self.borrowed.append(rows)
        return native_matrix(self._kernels, rows)
