"""Names of catalogs, hubs and users stay inside of the cache."""

from __future__ import annotations

import pytest

from specrun.catalog.file_names import is_safe_name, is_safe_path, is_safe_repo, telling_name


@pytest.mark.parametrize("name", ["a" * 40, "main", "0123abc-12", "v1.0"])
def test_names(name: str) -> None:
    assert is_safe_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", "a\0", "a\n", "a b", "x" * 300, "é"])
def test_what_is_no_name(name: str) -> None:
    assert not is_safe_name(name)


@pytest.mark.parametrize("path", ["model.gguf", "UD-Q4_K_XL/a b-00001-of-00002.gguf", "dir/ä.gguf", "..x/y..gguf"])
def test_paths(path: str) -> None:
    assert is_safe_path(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/x.gguf",
        "../x.gguf",
        "a/../../x.gguf",
        "a//b",
        "./a",
        "a/.",
        "a\0b",
        "a\\..\\b",
        "a\nb",
        "x" * 300,
        "D:/evil.gguf",
        "a:b",
    ],
)
def test_what_leaves_a_folder(path: str) -> None:
    assert not is_safe_path(path)


def test_repositories() -> None:
    assert is_safe_repo("org/model-GGUF_1.5")
    assert not any(map(is_safe_repo, ("org", "../x", "org/..", "a/b/c", "org/x\0", "org/", "/x", "org/x\n")))


@pytest.mark.parametrize(
    ("file", "folder", "name"),
    [
        ("target.gguf", "qwen-14b", "qwen-14b/target.gguf"),
        ("model-Q4_K_M.gguf", "mine", "mine/model-Q4_K_M.gguf"),
        ("model-00001-of-00002.gguf", "mine", "mine/model-00001-of-00002.gguf"),
        ("Qwen2.5-14B-Instruct-Q4_K_M.gguf", "mine", "Qwen2.5-14B-Instruct-Q4_K_M.gguf"),
        ("target.gguf", "", "target.gguf"),
        ("draft-q2_k.gguf", "0123456789abcdef", "draft-q2_k.gguf"),
    ],
)
def test_a_file_whose_name_says_nothing_is_named_by_its_folder(file: str, folder: str, name: str) -> None:
    assert telling_name(file, folder) == name
