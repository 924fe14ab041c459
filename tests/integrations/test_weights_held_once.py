"""A model that was read from a file and runs fused is in memory once: neither the file nor a second copy stays."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from kvpager import native
from kvpager.integrations.attention_function import paged_attention
from kvpager.integrations.fused_layers import FusedDecoder, fused
from kvpager.integrations.model_layout import layout_for
from kvpager.models.load import load_model
from tests.tiny_model import tiny_model

pytestmark = pytest.mark.skipif(native.module() is None, reason=f"no native kernels: {native.why_not()}")


@contextmanager
def fused_from(folder: Path) -> Iterator[torch.nn.Module]:
    model = load_model(folder).model
    layout = layout_for(model.config, dtype="float32")
    assert is_mapped(folder)  # the control: as it is read, it lies in the file's pages
    with paged_attention(model), fused(model, layout) as decoder:
        assert isinstance(decoder, FusedDecoder)
        yield model


def is_mapped(folder: Path) -> bool:
    return str(folder / "model.safetensors") in Path("/proc/self/maps").read_text()


def test_the_file_of_a_fused_model_is_let_go(tmp_path: Path) -> None:
    written = tiny_model()
    written.save_pretrained(tmp_path)
    with fused_from(tmp_path) as model:
        assert not is_mapped(tmp_path)
        parameters = dict(model.named_parameters())
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in parameters.values()}
        assert sum(storages.values()) == sum(each.nbytes for each in parameters.values())
        for name, value in written.named_parameters():
            assert torch.equal(value, parameters[name])


def test_memory_shared_with_other_processes_stays_shared() -> None:
    model = tiny_model()
    norm, head = model.model.norm.weight, model.lm_head.weight
    norm.share_memory_()
    places = norm.data_ptr(), head.data_ptr()
    with paged_attention(model), fused(model, layout_for(model.config, dtype="float32")) as decoder:
        assert isinstance(decoder, FusedDecoder)
        assert norm.is_shared()
        assert (norm.data_ptr(), head.data_ptr()) == places  # what torch allocated alone is not copied either
