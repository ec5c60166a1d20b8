"""Reading a model file's header: the facts that llama.cpp and gguf's own reader find; identity by bytes."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile, file_identity
from specrun.catalog.layer_states import kv_bytes_per_token
from specrun.errors import ModelFileError, OutOfMemoryError
from specrun.llama import LlamaModel
from tests.models import TOKENS, edited, random_gemma3, random_llama, random_mamba, tensor_data_offset, truncated


@pytest.mark.parametrize("path", [embedded.TARGET, embedded.DRAFT])
def test_the_facts_are_those_of_llama_cpp(path: Path) -> None:
    file = GgufFile.read(path)
    with LlamaModel(path) as model:
        assert file.n_vocab == model.n_vocab
        assert file.n_ctx_train == model.n_ctx_train
        assert file.n_bytes == model.n_bytes
        assert file.n_layers == llama_cpp.llama_model_n_layer(model.handle)
        assert file.n_embd == model.n_embd
        assert file.n_parameters == llama_cpp.llama_model_n_params(model.handle)


@pytest.mark.parametrize("path", [embedded.TARGET, embedded.DRAFT])
def test_metadata_and_tensors_are_those_of_ggufs_reader(path: Path) -> None:
    file, reader = GgufFile.read(path), gguf.GGUFReader(path)
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert dict(file.metadata) == expected
    assert file.metadata.n_strings(TOKENS) == len(expected[TOKENS])
    assert file.metadata.n_strings("general.name") is file.metadata.n_strings("no.such.key") is None
    assert [(t.name, t.shape, t.type, t.n_bytes) for t in file.tensors] == [
        (t.name, tuple(t.shape.tolist()), t.tensor_type.name, t.n_bytes) for t in reader.tensors
    ]


def test_parts_add_up_to_the_whole(random_model: Path) -> None:
    file = GgufFile.read(random_model)
    assert (file.architecture, file.n_layers, file.n_embd, file.n_ctx_train) == ("llama", 2, 64, 512)
    assert not file.is_tied
    parts = sum(file.layer_bytes) + file.embedding_bytes + file.output_bytes + file.other_bytes
    assert parts == file.n_bytes == sum(share["bytes"] for share in file.types.values())
    assert file.n_parameters == sum(share["parameters"] for share in file.types.values())
    assert list(file.types) == ["Q8_0", "F32"]
    assert file.other_bytes == 64 * 4  # output_norm
    assert file.expert_bytes == (0, 0)
    assert file.quantization == "Q8_0"


def test_a_tied_embedding_is_the_output_too(tmp_path: Path) -> None:
    file = GgufFile.read(random_gemma3(tmp_path / "model.gguf", window=8))
    assert file.is_tied
    assert file.output_bytes == file.embedding_bytes > 0
    assert sum(file.layer_bytes) + file.embedding_bytes + file.other_bytes == file.n_bytes
    assert file.number("attention.sliding_window") == 8
    assert kv_bytes_per_token(file) == (32 * 2 * 2,) * 6


@pytest.mark.slow
def test_kv_bytes(tmp_path: Path) -> None:
    file = GgufFile.read(random_llama(tmp_path / "model.gguf", n_head=2, n_head_kv=1))
    assert kv_bytes_per_token(file, "f16", "bf16") == (128, 128)
    assert kv_bytes_per_token(file, "q8_0", "f32") == (34 + 128, 34 + 128)
    per_layer = edited(tmp_path / "layers.gguf", file.path, {"llama.attention.head_count_kv": [2, 0]})
    assert kv_bytes_per_token(GgufFile.read(per_layer)) == (256, 0)
    without = edited(tmp_path / "without.gguf", file.path, {"llama.attention.head_count_kv": None})
    assert kv_bytes_per_token(GgufFile.read(without)) == (256, 256)
    lengths = {"llama.attention.key_length": 16, "llama.attention.value_length": 8}
    assert kv_bytes_per_token(GgufFile.read(edited(tmp_path / "kv.gguf", file.path, lengths))) == (48, 48)
    mla = {"llama.attention.key_length_mla": 16, "llama.attention.value_length_mla": 8}
    assert kv_bytes_per_token(GgufFile.read(edited(tmp_path / "mla.gguf", file.path, mla))) == (64, 64)
    assert kv_bytes_per_token(GgufFile.read(random_mamba(tmp_path / "mamba.gguf"))) == (0,)


def split(folder: Path, source: Path, count: int = 2) -> list[Path]:
    """`source` as a split model, its tensors dealt out in turn."""
    reader = gguf.GGUFReader(source)
    paths = [folder / f"model-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        if number == 0:
            for key in ("block_count", "embedding_length", "context_length"):
                writer.add_uint32(f"llama.{key}", reader.fields[f"llama.{key}"].contents())
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        for tensor in reader.tensors[number::count]:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_all_shards_of_a_split_model_are_read(tmp_path: Path, random_model: Path) -> None:
    paths = split(tmp_path, random_model)
    file, whole = GgufFile.read(paths[0]), GgufFile.read(random_model)
    assert file.shards == tuple(paths)
    assert (file.n_bytes, file.layer_bytes) == (whole.n_bytes, whole.layer_bytes)
    with pytest.raises(ModelFileError, match="shard 2 of 2; give the first, model-00001-of-00002"):
        GgufFile.read(paths[1])
    renamed = Path(shutil.copy(paths[0], tmp_path / "renamed.gguf"))
    with pytest.raises(ModelFileError, match=r"rename it to \*-00001-of-00002\.gguf"):
        GgufFile.read(renamed)
    paths[1].unlink()
    with pytest.raises(ModelFileError, match=r"model-00002-of-00002\.gguf is missing"):
        GgufFile.read(paths[0])


def test_errors_are_one_line(tmp_path: Path) -> None:
    text, empty = tmp_path / "text.gguf", tmp_path / "empty.gguf"
    text.write_text("hello, this is no model")
    empty.touch()
    for path, reason in (
        (text, "not a GGUF file"),
        (empty, "is empty"),
        (tmp_path, "is a folder"),
        (tmp_path / "none.gguf", "no such file"),
    ):
        with pytest.raises(ModelFileError, match=reason) as raised:
            GgufFile.read(path)
        assert "\n" not in str(raised.value)


def test_a_folder_is_answered_with_what_is_in_it(tmp_path: Path, random_model: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelFileError, match=r"another format; .*convert_hf_to_gguf"):
        GgufFile.read(tmp_path)
    shutil.copy(random_model, tmp_path / "a.gguf")
    (tmp_path / "mmproj.gguf").write_bytes(10_000_000 * b"x")
    with pytest.raises(ModelFileError, match=r"such as .*a\.gguf$"):
        GgufFile.read(tmp_path)
    (tmp_path / "target.gguf").write_bytes(1_000_000 * b"x")
    with pytest.raises(ModelFileError, match=r"such as .*target\.gguf \(beside it: a\.gguf\)$"):
        GgufFile.read(tmp_path)
    for shard in (1, 2):
        (tmp_path / f"split-0000{shard}-of-00002.gguf").write_bytes(600_000 * b"x")
    with pytest.raises(ModelFileError, match=r"split-00001-of-00002\.gguf \(beside it: target\.gguf, a\.gguf\)$"):
        GgufFile.read(tmp_path)


def test_a_file_that_ends_early_is_incomplete(tmp_path: Path, random_model: Path) -> None:
    header = tensor_data_offset(random_model)
    for n_bytes in (5, 23, 24, 100, 1000, header // 2, header - 64, header, header + 1000, -1):
        with pytest.raises(ModelFileError, match="incomplete"):
            GgufFile.read(truncated(tmp_path / "cut.gguf", random_model, n_bytes))


@pytest.mark.slow
def test_nonsense_in_the_header_is_an_error_and_not_a_crash(tmp_path: Path, random_model: Path) -> None:
    data = bytearray(random_model.read_bytes()[: tensor_data_offset(random_model)])
    rng = np.random.default_rng(0)
    broken = tmp_path / "broken.gguf"
    for position in rng.integers(4, len(data), 300):
        changed = data.copy()
        changed[position] ^= 0xFF
        broken.write_bytes(changed)
        with pytest.raises(ModelFileError) as raised:  # all of these lack their weights, too
            GgufFile.read(broken)
        assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_large_vocabulary_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list([f"token {i}" for i in range(150_000)])
    writer.add_token_merges([f"a{i} b{i}" for i in range(150_000)])
    writer.add_uint32("llama.block_count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile.read(path)
    assert (file.n_layers, file.n_vocab, file.n_bytes) == (3, 150_000, 0)
    assert file.metadata[TOKENS][-1] == "token 149999"


def test_a_file_that_there_is_no_memory_to_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_llama(tmp_path / "model.gguf")  # one that no earlier test has read

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", full)
    with pytest.raises(OutOfMemoryError, match="not enough memory"):
        GgufFile.read(model)


def test_a_file_that_changed_just_now_takes_no_place_of_what_is_kept(tmp_path: Path) -> None:
    kept, fresh = (Path(shutil.copy(embedded.DRAFT, tmp_path / name)) for name in ("kept.gguf", "fresh.gguf"))
    os.utime(kept, (0, 0))
    first = GgufFile.read(kept)
    fresh.touch()
    assert GgufFile.read(fresh) is not GgufFile.read(fresh)
    assert GgufFile.read(kept) is first


def test_identity_is_of_the_content(tmp_path: Path) -> None:
    one, moved, other, longer = (tmp_path / name for name in ("one", "moved", "other", "longer"))
    data = bytearray(5 * 2**20)
    one.write_bytes(data)
    moved.write_bytes(data)
    longer.write_bytes(data + b"\0")
    data[-1] = 1
    other.write_bytes(data)
    assert file_identity([one]) == file_identity([moved])
    assert len({file_identity(paths) for paths in ([one], [other], [longer], [one, other], [other, one])}) == 5
    with pytest.raises(ModelFileError, match="cannot be read"):
        file_identity([tmp_path / "none"])
