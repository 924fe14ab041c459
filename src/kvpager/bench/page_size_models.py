"""The shapes of models that page sizes are measured for, and what the description's appendix A says of them.

The description gives a page in KB, and counts K and V of one layer. Here a page holds all layers of its tokens; both
sizes are shown.
"""

from dataclasses import dataclass

from kvpager.bench.paged_case import SMOL, Shape

PAGE_SIZES = (8, 16, 32, 64, 128, 256)
CONTEXTS = (512, 4096, 32768, 131072)


@dataclass(frozen=True, slots=True)
class SizedModel:
    """``billions`` of parameters; ``layers`` whose attention is ``shape``."""

    name: str
    billions: float
    layers: int
    shape: Shape

    def layer_kib(self, page_size: int) -> float:
        """K and V of a page in one layer, bf16."""
        return page_size * self.shape.bytes_per_token / 1024

    def page_kib(self, page_size: int) -> float:
        """K and V of a page in all layers, bf16: what a block holds."""
        return self.layers * self.layer_kib(page_size)


MODELS = (
    SizedModel("135m", 0.135, 30, SMOL),  # SmolLM2
    SizedModel("1b", 1.24, 16, Shape("1b", 32, 8, 64)),  # Llama 3.2
    SizedModel("8b", 8.03, 32, Shape("8b", 32, 8, 128)),  # Llama 3.1
    SizedModel("70b", 70.6, 80, Shape("70b", 64, 8, 128)),
)


def described_kib(billions: float, context: int) -> int:
    """Appendix A: the larger of what it says for the size of the model and for the context."""
    by_model = 8 if billions < 10 else 16 if billions <= 70 else 32 if billions <= 100 else 64
    by_context = 8 if context < 4096 else 16 if context < 32768 else 32 if context <= 1 << 20 else 64
    return max(by_model, by_context)
