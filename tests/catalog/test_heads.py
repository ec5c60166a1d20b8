"""Which heads can draft for which targets, by the headers of their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import Head, check_head, check_no_head, head_in
from specrun.errors import ModelFileError, PairError
from tests.eagle_heads import random_eagle3
from tests.models import TOKENS, random_gemma3, random_llama, tokenizer

N_EMBD, N_LAYER = 64, 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_llama(tmp_path_factory.mktemp("targets") / "target.gguf", n_embd=N_EMBD, n_layer=N_LAYER)


def test_what_a_head_says_of_itself(target: Path, tmp_path: Path) -> None:
    head = head_in(GgufFile.read(random_eagle3(tmp_path / "head.gguf", target)))
    assert head == Head("eagle3", (1, N_LAYER // 2, N_LAYER - 1), N_EMBD)
    assert head.name == "EAGLE-3 head"
    assert head_in(GgufFile.read(embedded.TARGET)) is None


@pytest.mark.parametrize("layers", [[1, 2], [1, 2, 3, 3]], ids=str)
def test_a_head_that_llama_cpp_cannot_load_is_broken(target: Path, tmp_path: Path, layers: list[int]) -> None:
    file = random_eagle3(tmp_path / "head.gguf", target, layers=layers)
    with pytest.raises(ModelFileError, match="target_layers are not 3 numbers"):
        head_in(GgufFile.read(file))


def check(target: Path, file: Path) -> None:
    head = head_in(GgufFile.read(file))
    assert head
    check_head(GgufFile.read(target), GgufFile.read(file), head)


def test_a_head_of_this_target_fits(target: Path, tmp_path: Path) -> None:
    check(target, random_eagle3(tmp_path / "head.gguf", target))
    check(embedded.TARGET, random_eagle3(tmp_path / "embedded.gguf"))


OTHER_TOKENS = [*tokenizer()[TOKENS][:-1], "<other>"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"metadata": {"eagle3.target_hidden_size": 96}}, "reads states of 96 numbers, and the target's have 64"),
        ({"layers": [1, 2, 9]}, "reads the state before layer 9, and the target has 4 layers"),
        ({"layers": [1, 2, N_LAYER]}, "reads the state before layer 4, and the target has 4 layers"),
        ({"metadata": {"eagle3.embedding_length": 96}}, "uses the target's embedding or output matrix"),
        ({"metadata": {TOKENS: OTHER_TOKENS}}, "token 2047 is .* in the target and '<other>' in the draft"),
        ({"metadata": {TOKENS: OTHER_TOKENS[:-1]}}, "it has 2047 tokens, and the target 2048"),
        ({"metadata": {"tokenizer.ggml.pre": "llama-bpe"}}, "the draft as llama-bpe"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_reason_is_named(target: Path, tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    file = random_eagle3(tmp_path / "head.gguf", target, **options)
    with pytest.raises(
        PairError, match=f"^this EAGLE-3 head cannot draft for this target: .*{reason}.*; choose a head"
    ):
        check(target, file)


def test_an_architecture_that_gives_no_states_is_refused(tmp_path: Path) -> None:
    gemma = random_gemma3(tmp_path / "gemma.gguf", window=32)
    with pytest.raises(PairError, match="no states of the layers of gemma3 models"):
        check(gemma, random_eagle3(tmp_path / "head.gguf", gemma))


def test_a_head_is_no_model(target: Path, tmp_path: Path) -> None:
    check_no_head(GgufFile.read(target))
    with pytest.raises(ModelFileError, match="is an EAGLE-3 head, which writes nothing by itself; give it as --draft"):
        check_no_head(GgufFile.read(random_eagle3(tmp_path / "head.gguf", target)))
