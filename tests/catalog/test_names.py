"""What a NAME means, and which file of a repository a quantization means."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog.file_names import models_among, quantization, shards, with_quantization
from specrun.catalog.hub import HubName
from specrun.catalog.names import parse
from specrun.errors import UsageError

QWEN = "Qwen/Qwen2.5-14B-Instruct-GGUF"


def hub_name(text: str) -> HubName:
    name = parse(text)
    assert isinstance(name, HubName)
    return name


@pytest.mark.parametrize("text", ["qwen-14b", "QWEN-14B", "qwen-14b:q4_k_m", "qwen-14b:Q4_K_M"])
def test_an_alias(text: str) -> None:
    name = hub_name(text)
    assert (name.repo, name.quantization) == (QWEN, None)
    assert name.file == "qwen2.5-14b-instruct-q4_k_m-00001-of-00003.gguf"
    assert name.entry
    assert name.entry.alias == "qwen-14b"


def test_an_alias_in_another_quantization() -> None:
    name = hub_name("qwen-14b:q2_k")
    assert (name.repo, name.file, name.quantization) == (QWEN, None, "q2_k")


@pytest.mark.parametrize(
    ("text", "repo", "file", "wanted", "alias"),
    [
        ("org/repo", "org/repo", None, None, None),
        ("org/repo:Q4_K_M", "org/repo", None, "Q4_K_M", None),
        ("hf.co/org/repo:Q4_K_M", "org/repo", None, "Q4_K_M", None),
        ("hf://org/repo", "org/repo", None, None, None),
        ("https://huggingface.co/org/repo", "org/repo", None, None, None),
        ("https://huggingface.co/org/repo/tree/main", "org/repo", None, None, None),
        ("https://huggingface.co/org/repo/blob/main/model.gguf", "org/repo", "model.gguf", None, None),
        ("https://huggingface.co/org/repo/resolve/main/a/m.gguf?download=true", "org/repo", "a/m.gguf", None, None),
        ("https://huggingface.co/org/repo/tree/main/UD-Q4_K_XL", "org/repo", None, "UD-Q4_K_XL", None),
        ("https://huggingface.co/org/repo/blob/main/sub/a%20b.gguf", "org/repo", "sub/a b.gguf", None, None),
        ("https://huggingface.co/org/repo?show_file_info=m.gguf", "org/repo", "m.gguf", None, None),
        ("https://huggingface.co/org/repo?local-app=ollama#top", "org/repo", None, None, None),
        ("https://huggingface.co/org/repo/discussions/3", "org/repo", None, None, None),
        ("hf.co/org/repo:latest", "org/repo", None, None, None),
        ("hf.co/org/repo:m-Q4_K_M.gguf", "org/repo", "m-Q4_K_M.gguf", None, None),
        (f"{QWEN}:Q8_0", QWEN, None, "Q8_0", "qwen-14b"),
        ("org/repo/model.gguf", "org/repo", "model.gguf", None, None),
        ("org/repo/sub/model.gguf", "org/repo", "sub/model.gguf", None, None),
        ("org/repo/m-00002-of-00003.gguf", "org/repo", "m-00001-of-00003.gguf", None, None),
        (f"{QWEN}/qwen2.5-14b-instruct-q4_k_m-00003-of-00003.gguf", QWEN, "*", None, "qwen-14b"),
    ],
)
def test_a_repository_and_a_file_of_one(
    text: str, repo: str, file: str | None, wanted: str | None, alias: str | None
) -> None:
    name = hub_name(text)
    assert (name.name, name.repo, name.quantization) == (text, repo, wanted)
    assert (name.entry.alias if name.entry else None) == alias
    assert name.file == (name.entry.file if file == "*" and name.entry else file)


def test_blanks_and_quotes_around_a_pasted_name_are_no_part_of_it(tmp_path: Path) -> None:
    for text in (" qwen-14b", "qwen-14b \t", '"qwen-14b"', "'qwen-14b' "):
        assert hub_name(text) == hub_name("qwen-14b")
    assert parse(f"'{tmp_path}/a model.gguf' ") == tmp_path / "a model.gguf"
    (file := tmp_path / "ends with a blank.gguf ").touch()
    assert parse(str(file)) == file


@pytest.mark.parametrize(
    ("page", "revision"),
    [
        ("blob/main", None),
        ("resolve/v1.0", "v1.0"),
        ("blob/refs%2Fpr%2F1", "refs/pr/1"),
        ("tree/" + "a" * 40, "a" * 40),
    ],
)
def test_the_revision_of_an_address(page: str, revision: str | None) -> None:
    assert hub_name(f"https://huggingface.co/org/repo/{page}/m.gguf").revision == revision


@pytest.mark.parametrize("text", ["/x/qwen-14b", "./qwen-14b", "~/x.gguf", "../x", "x.gguf", "folder/x.GGUF"])
def test_a_path(text: str) -> None:
    assert parse(text) == Path(text).expanduser()


@pytest.mark.parametrize(
    "text",
    [r"C:\models\x.gguf", "C:/models/llama/x.gguf", r"C:x.gguf", r"models\llama\x.gguf", r"\\nas\models\x", "d:/x"],
)
def test_a_path_of_windows_is_no_repository_and_no_quantization(text: str) -> None:
    assert parse(text) == Path(text)


def test_a_file_that_exists_is_a_path_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("org/repo/model.gguf", "org/repo/model", "model"):
        (tmp_path / text).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / text).touch()
        assert parse(text) == Path(text)
    (tmp_path / "folder").mkdir()
    assert parse("folder") == Path("folder")
    (tmp_path / "qwen-14b").mkdir()
    assert hub_name("qwen-14b").repo == QWEN


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("qwen-41b", "qwen-14b"),
        ("x", "give a path, an alias"),
        ("", "give a path"),
        ("https://hf.co/org/repo/blob/..%2F..%2Fx/m.gguf", "names a revision that cannot be one"),
        ("https://hf.co/org/repo/blob/%00/m.gguf", "names a revision that cannot be one"),
        ("https://example.com/org/m.gguf", "is no model on http://127.0.0.1:9; fetch the file yourself"),
    ],
)
def test_an_unknown_alias_is_told_with_near_ones(text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        parse(text)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("qwen2.5-14b-instruct-q4_k_m-00001-of-00003.gguf", "q4_k_m"),
        ("Qwen3-0.6B-Q8_0.gguf", "Q8_0"),
        ("gemma-3-4b-it-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Llama-3.2-1B-Instruct-IQ3_XXS.gguf", "IQ3_XXS"),
        ("model.Q5_0.gguf", "Q5_0"),
        ("model-f16.gguf", "f16"),
        ("model-BF16.gguf", "BF16"),
        ("gpt-oss-20b-mxfp4.gguf", "mxfp4"),
        ("Q8_0/model-Q8_0-00001-of-00002.gguf", "Q8_0"),
        ("model.gguf", None),
    ],
)
def test_the_quantization_that_a_name_tells(file: str, expected: str | None) -> None:
    assert quantization(file) == expected


def test_shards() -> None:
    assert shards("a/m-q8_0-00002-of-00002.gguf") == ("a/m-q8_0-00001-of-00002.gguf", "a/m-q8_0-00002-of-00002.gguf")
    assert shards("m-q8_0.gguf") == ("m-q8_0.gguf",)


def test_which_files_of_a_repository_are_models() -> None:
    files = ["README.md", "m-Q4_K_M.gguf", "mmproj-m-f16.gguf", "m-Q8_0-00002-of-00002.gguf"]
    assert models_among([*files, "m-Q8_0-00001-of-00002.gguf"]) == ["m-Q4_K_M.gguf", "m-Q8_0-00001-of-00002.gguf"]


@pytest.mark.parametrize(
    ("files", "wanted", "expected"),
    [
        (["m-Q8_0.gguf", "m-Q4_K_M.gguf"], None, ["m-Q4_K_M.gguf"]),
        (["m-Q8_0.gguf", "m-Q5_0.gguf"], None, ["m-Q8_0.gguf"]),
        (["a.gguf", "b.gguf"], None, ["a.gguf", "b.gguf"]),
        (["m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf"], "q4_k_m", ["m-Q4_K_M.gguf"]),
        (["m-Q4_K_M.gguf"], "q4_k_s", []),
        (["m-Q4_K_M.gguf"], "q4_k", []),
        (["m-UD-Q4_K_XL.gguf"], "Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
        (["m-Q4_K_XL.gguf", "m-UD-Q4_K_XL.gguf"], "UD-Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
        (["m.i1-Q4_K_M.gguf"], "i1-Q4_K_M", ["m.i1-Q4_K_M.gguf"]),
        (["m.i1-Q4_K_M.gguf"], "Q4_K_M", ["m.i1-Q4_K_M.gguf"]),
        (["7b-Q8_0.gguf", "13b-Q8_0.gguf"], "13b-Q8_0", ["13b-Q8_0.gguf"]),
        (["BF16/m-00001-of-00002.gguf", "m-Q8_0.gguf"], "bf16", ["BF16/m-00001-of-00002.gguf"]),
        (["m-Q8_0.gguf", "MTP/m-Q8_0-MTP.gguf", "m-lora-Q8_0.gguf"], "q8_0", ["m-Q8_0.gguf"]),
        (["m-Q8_0.gguf", "m-assistant-Q4_K_M.gguf", "m-control-vector.gguf"], None, ["m-Q8_0.gguf"]),
        (["m-EAGLE3-Q8_0.gguf"], "q8_0", []),
        (["m-MTP-Q4_K_M.gguf", "Floral-adapted-Q8_0.gguf"], "Q4_K_M", ["m-MTP-Q4_K_M.gguf"]),
    ],
)
def test_which_file_a_quantization_means(files: list[str], wanted: str | None, expected: list[str]) -> None:
    assert with_quantization(files, "org/repo-GGUF", wanted) == expected


@pytest.mark.parametrize(
    ("repo", "file"),
    [
        ("org/m-EAGLE3-GGUF", "m-EAGLE3-Q8_0.gguf"),
        ("org/m-lora-merged-GGUF", "m-lora-merged-Q8_0.gguf"),
        ("org/gemma-assistant-gguf", "assistant/gemma-assistant-Q8_0.gguf"),
    ],
)
def test_in_a_repository_of_heads_or_adapters_their_names_are_models_names(repo: str, file: str) -> None:
    for wanted in (None, "Q8_0"):
        assert with_quantization([file, "mmproj-Q8_0.gguf"], repo, wanted) == [file]
