"""Files of weights: a damaged one is found by its header, wherever it ends and whatever it claims."""

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpager.errors import ModelError, UnsupportedModel
from kvpager.models.gguf_file import read_gguf_header
from kvpager.models.safetensors_file import check_safetensors


@pytest.fixture
def weights(folder: Path) -> Path:
    return folder / "model.safetensors"


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


class TestSafetensors:
    def test_a_whole_file(self, weights: Path) -> None:
        check_safetensors(weights)

    @pytest.mark.parametrize("left", [0, 1, 7, 8, 9, 500, -1])
    def test_a_truncated_file(self, weights: Path, left: int) -> None:
        truncate(weights, left if left >= 0 else weights.stat().st_size + left)
        with pytest.raises(ModelError, match=r"model.safetensors is damaged: .*Download or copy"):
            check_safetensors(weights)

    def test_bytes_too_many(self, weights: Path) -> None:
        with weights.open("ab") as file:
            file.write(b"xx")
        with pytest.raises(ModelError, match="2 bytes more than its header describes"):
            check_safetensors(weights)

    def test_an_absurd_header_length(self, weights: Path) -> None:
        patch(weights, 0, struct.pack("<Q", 2**63))
        with pytest.raises(ModelError, match="doesn't start with a safetensors header"):
            check_safetensors(weights)

    @pytest.mark.parametrize("header", [b"\xff", b"[]", b'{"a": 1}', b'{"a": {"data_offsets": []}}', b"{"])
    def test_a_header_that_is_none(self, tmp_path: Path, header: bytes) -> None:
        path = tmp_path / "bad.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        with pytest.raises(ModelError, match="not the JSON of a safetensors file"):
            check_safetensors(path)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="can't be read: No such file"):
            check_safetensors(tmp_path / "none.safetensors")


class TestGGUF:
    def test_a_whole_file(self, gguf_file: Path) -> None:
        header = read_gguf_header(gguf_file)
        assert (header.version, header.num_tensors) == (3, 20)
        assert header.key_to_value["general.architecture"] == "llama"
        assert header.key_to_value["llama.block_count"] == 2
        assert header.key_to_value["llama.rope.freq_base"] == 10000.0
        assert "tokenizer.ggml.tokens" not in header.key_to_value

    @pytest.mark.parametrize("magic", [b"GGML", b"\0\0\0\0", b"PK\3\4"])
    def test_another_magic(self, gguf_file: Path, magic: bytes) -> None:
        patch(gguf_file, 0, magic)
        with pytest.raises(ModelError, match=r"tiny.gguf is damaged: it doesn't start with the letters GGUF"):
            read_gguf_header(gguf_file)

    @pytest.mark.parametrize("left", [0, 3, 4, 7, 20, 100, 3000, -1])
    def test_a_truncated_file(self, gguf_file: Path, left: int) -> None:
        truncate(gguf_file, left if left >= 0 else gguf_file.stat().st_size + left)
        with pytest.raises(ModelError, match=r"tiny.gguf is damaged: .*Download or copy"):
            read_gguf_header(gguf_file)

    @pytest.mark.parametrize("version", [1, 4, 3 << 24])
    def test_another_version(self, gguf_file: Path, version: int) -> None:
        patch(gguf_file, 4, struct.pack("<I", version))
        with pytest.raises(UnsupportedModel, match="versions 2 and 3"):
            read_gguf_header(gguf_file)

    @pytest.mark.parametrize("offset", [8, 16])
    def test_absurd_counts(self, gguf_file: Path, offset: int) -> None:
        patch(gguf_file, offset, struct.pack("<Q", 2**62))
        with pytest.raises(ModelError, match="is damaged"):
            read_gguf_header(gguf_file)

    def test_a_part_of_a_split_model(self, gguf_file: Path) -> None:
        pair = b"split.count"
        content = gguf_file.read_bytes()
        added = struct.pack("<Q", len(pair)) + pair + struct.pack("<IH", 2, 3)
        (pairs,) = struct.unpack_from("<Q", content, 16)
        gguf_file.write_bytes(content[:16] + struct.pack("<Q", pairs + 1) + added + content[24:])
        with pytest.raises(UnsupportedModel, match="merge the parts"):
            read_gguf_header(gguf_file)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="can't be read: No such file"):
            read_gguf_header(tmp_path / "none.gguf")

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
    @given(offset=st.integers(4, 4000), data=st.binary(min_size=1, max_size=8))
    def test_damage_anywhere_is_our_error_or_none(
        self, made_gguf: Path, tmp_path: Path, offset: int, data: bytes
    ) -> None:
        path = tmp_path / "tiny.gguf"
        path.write_bytes(made_gguf.read_bytes())
        patch(path, offset, data)
        with suppress(ModelError):
            read_gguf_header(path)
