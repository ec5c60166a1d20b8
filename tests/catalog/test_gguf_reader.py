"""Files that contradict themselves are refused in one line, without reading or making what they merely promise."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import check_characters
from specrun.catalog.gguf_reader import parse_header, read_beginning, read_header
from specrun.catalog.heads import head_in, own_head
from specrun.catalog.info import facts, lines
from specrun.catalog.layer_states import expert_pages, weight_pages
from specrun.catalog.pairs import read_vocabulary
from specrun.catalog.resolve import Model
from specrun.errors import ModelFileError
from tests.broken_files import ARRAY, STRING, Parts, Tensor, Value, broken, taken_apart
from tests.models import TOKENS, Reader, metadata_of, write_tensors

U32, F32, I32, U64 = 4, 6, 5, 10


def number(value: int) -> Value:
    return Value(U32, struct.pack("<I", value))


def texts(*items: bytes) -> Value:
    return Value(ARRAY, b"".join(Value(STRING, item).bytes() for item in items), STRING, len(items))


def added(key: str, value: Value) -> Callable[[Parts], Parts]:
    return lambda parts: replace(parts, metadata=(*parts.metadata, (key.encode(), value)))


def changed(key: str, value: Value) -> Callable[[Parts], Parts]:
    return lambda parts: parts.with_value(key, value)


def first_tensor(**values: object) -> Callable[[Parts], Parts]:
    def change(parts: Parts) -> Parts:
        return replace(parts, tensors=(replace(parts.tensors[0], **values), *parts.tensors[1:]))

    return change


def more_tensors(*tensors: Tensor) -> Callable[[Parts], Parts]:
    return lambda parts: replace(parts, tensors=(*parts.tensors, *tensors))


@pytest.fixture(scope="module")
def parts(random_model: Path) -> Parts:
    return taken_apart(random_model)


def read_everything(path: Path) -> None:
    """All that specrun itself reads of a file."""
    lines(facts(Model(str(path), path)))
    file = GgufFile.read(path)
    len(read_vocabulary(file).tokens)
    weight_pages(file, 4096)
    expert_pages(file, 4096)
    head_in(file)
    own_head(file)


def failure(call: Callable[[], object]) -> str:
    """What a call says that may fail with ModelFileError only; empty if it does not."""
    try:
        call()
    except ModelFileError as error:
        return str(error)
    return ""


def test_parts_put_together_are_the_file(random_model: Path, parts: Parts) -> None:
    assert parts.together() == random_model.read_bytes()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (changed("llama.block_count", number(0)), "number of layers (0)"),
        (changed("llama.block_count", number(2**32 - 1)), "number of layers (4294967295)"),
        (changed("llama.block_count", Value(F32, struct.pack("<f", 2))), "llama.block_count is no number"),
        (changed("llama.block_count", Value(I32, struct.pack("<i", -2))), "llama.block_count is no number"),
        (changed("llama.context_length", Value(STRING, b"long")), "llama.context_length is no number"),
        (changed("llama.attention.head_count", texts(b"1", b"2")), "head_count is no number"),
        (added("llama.vocab_size", Value(U64, struct.pack("<Q", 2**64 - 1))), "vocab_size is no number"),
        (added("llama.expert_count", number(5000)), "number of experts"),
        (added("llama.expert_used_count", number(2)), "number of experts"),
        (added("llama.nextn_predict_layers", number(9)), "several tokens"),
        (changed("general.architecture", number(7)), "general.architecture is no text"),
        (changed("general.architecture", Value(STRING, b"\x1b[2J")), "general.architecture is no name"),
        (changed("tokenizer.ggml.pre", Value(STRING, "\u202e".encode())), "tokenizer.ggml.pre is no name"),
        (changed("tokenizer.chat_template", number(5)), "chat_template is no text"),
        (changed("tokenizer.ggml.tokens", number(5)), "tokens is no list of texts"),
        (changed("tokenizer.ggml.bos_token_id", Value(I32, struct.pack("<i", -9))), "bos_token_id is no number"),
        (added("general.name", Value(STRING, b"again")), "'general.name' twice"),
        (added("", number(1)), "no possible name"),
        (added("a\x1b[2J", number(1)), "no possible name"),
        (added("x", Value(ARRAY, Value(ARRAY, b"", U32, 0).bytes(), ARRAY, 1)), "array of values of type 9"),
        (added("x", Value(ARRAY, b"", STRING, 2**40)), "array of 1,099,511,627,776 strings"),
        (added("x", Value(ARRAY, b"", U64, 2**61)), "incomplete"),
        (added("x", Value(99, b"")), "metadata of an unknown type (99)"),
        (added("general.alignment", number(48)), "impossible alignment (48)"),
        (added("general.alignment", number(0)), "impossible alignment (0)"),
        (added("split.count", number(3)), "rename it"),
        (first_tensor(name=b"x" * 64), "no possible name"),
        (first_tensor(name=b"\xff\xfe"), "no possible name"),
        (first_tensor(shape=(2**63, 2)), "impossible size"),
        (first_tensor(shape=(2**40, 2**40)), "impossible size"),
        (first_tensor(shape=(0, 64)), "impossible size"),
        (first_tensor(shape=(33, 64)), "impossible size"),
        (first_tensor(shape=(64, 10**9)), "overlaps"),
        (first_tensor(kind=26), "in which there are no weights"),
        (first_tensor(kind=28, shape=(64, 64)), "in which there are no weights"),
        (first_tensor(shape=(1, 1, 1, 1, 1)), "5 dimensions"),
        (first_tensor(kind=4), "unknown type"),
        (first_tensor(kind=2**31), "unknown type"),
        (first_tensor(offset=7), "no multiple of 32"),
        (first_tensor(offset=2**63), "impossible size"),
        (more_tensors(Tensor(b"more.weight", (32,), 0, 2**40)), "incomplete"),
        (more_tensors(Tensor(b"more.weight", (32,), 0, 0)), "overlaps"),
        (more_tensors(Tensor(b"token_embd.weight", (32,), 0, 2**40)), "'token_embd.weight' twice"),
    ],
)
def test_what_contradicts_itself_is_refused(
    parts: Parts, tmp_path: Path, change: Callable[[Parts], Parts], part: str
) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(change(parts).together())
    with pytest.raises(ModelFileError) as raised:
        GgufFile.read(path)
    assert part in str(raised.value)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("offset", [8, 16])
@pytest.mark.parametrize("count", [2**20, 2**40, 2**64 - 1])
def test_counts_that_no_file_can_have_are_refused(parts: Parts, tmp_path: Path, offset: int, count: int) -> None:
    data = bytearray(parts.together())
    struct.pack_into("<Q", data, offset, count)
    (tmp_path / "broken.gguf").write_bytes(data)
    with pytest.raises(ModelFileError, match="claims to have"):
        GgufFile.read(tmp_path / "broken.gguf")


def test_a_sparse_file_of_zeros_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "zeros.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 60_000))
        file.truncate(2**38)
    with pytest.raises(ModelFileError, match="no possible name"):
        GgufFile.read(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="no regular file"):
        GgufFile.read(tmp_path / "pipe.gguf")


def test_a_vocabulary_without_ordinary_characters_is_refused(parts: Parts) -> None:
    whole = texts(*(f"<0x{byte:02X}>".encode() for byte in range(256)))
    for tokens, is_complete in ((whole, True), (texts(b"a", b"b"), False)):
        model = parts.with_value("tokenizer.ggml.model", Value(STRING, b"llama"))
        metadata = parse_header(model.with_value("tokenizer.ggml.tokens", tokens).together(), "x").metadata
        if is_complete:
            check_characters(metadata, "x")
        else:
            with pytest.raises(ModelFileError, match="lacks the character"):
                check_characters(metadata, "x")
    check_characters(parse_header(parts.together(), "x").metadata, "x")


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_header_or_an_error(data: bytes) -> None:
    for whole in (data, b"GGUF" + data, b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + data):
        assert "\n" not in failure(lambda whole=whole: parse_header(whole, "x"))


@pytest.mark.slow
@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32))
def test_a_file_broken_in_any_way_is_read_or_refused(parts: Parts, tmp_path: Path, seed: int) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(broken(parts, random.Random(seed))[0])
    assert "\n" not in failure(lambda: read_everything(path))


def test_a_models_name_is_one_line(parts: Parts, tmp_path: Path) -> None:
    path = tmp_path / "named.gguf"
    path.write_bytes(parts.with_value("general.name", Value(STRING, b"a\nspecrun: b\x1b[2J")).together())
    assert GgufFile.read(path).name == "a\\u000aspecrun: b\\u001b[2J"
    assert "\x1b" not in str(lines(facts(Model(str(path), path))))


def test_a_vocabulary_that_comes_last_is_not_read(tmp_path: Path, random_model: Path) -> None:
    reader = Reader(random_model)
    values = metadata_of(reader)
    ordered = {key: values[key] for key in sorted(values, key=lambda key: (key.startswith("tokenizer."), key))}
    described = write_tensors(tmp_path / "described-first.gguf", ordered, reader.tensors)
    beginning, whole = read_beginning(described), read_header(described).metadata
    assert dict(beginning) == {key: value for key, value in whole.items() if not key.startswith("tokenizer.")}
    assert TOKENS in read_beginning(random_model), "it has its vocabulary first"
