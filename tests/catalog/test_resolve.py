"""Which target and draft the names on a command line mean, with and without a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog import cache
from specrun.catalog.entries import catalog
from specrun.catalog.file_names import shards
from specrun.catalog.resolve import NO_DRAFT, choose, locate, missing_error, recommended_drafts


def put(alias: str) -> Path:
    """Register a model as if it had been fetched."""
    entry = catalog()[alias]
    blobs = {}
    for shard in shards(entry.file):
        blobs[shard] = cache.folder(entry.repo) / "blobs" / f"blob-of-{shard}"
        blobs[shard].parent.mkdir(parents=True, exist_ok=True)
        blobs[shard].write_bytes(b"GGUF")
    return cache.register(entry.repo, "main", "c" * 40, blobs)


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    choice = choose(str(tmp_path / "x.gguf"), None, may_fetch=True)
    assert (choice.target.path, choice.draft, choice.missing) == (tmp_path / "x.gguf", None, [])


def test_a_cached_alias_is_found_in_every_spelling() -> None:
    path = put("qwen-14b")
    names = ["qwen-14b", "Qwen-14B", "qwen-14b:Q4_K_M", "Qwen/Qwen2.5-14B-Instruct-GGUF"]
    assert {locate(name).path for name in names} == {path}
    assert locate("qwen-14b:q2_k").path is None


def test_the_first_recommended_draft_that_is_cached_is_taken() -> None:
    put("qwen-14b")
    small = put("qwen-1.5b")
    choice = choose("qwen-14b", None, may_fetch=True)
    assert choice.recommended
    assert choice.draft
    assert (choice.draft.name, choice.draft.path) == ("qwen-1.5b", small)
    put("qwen-0.5b")
    choice = choose("qwen-14b", None, may_fetch=False)
    assert choice.draft
    assert choice.draft.name == "qwen-0.5b"


def test_without_a_cached_draft_the_first_is_named_only_if_it_may_be_fetched() -> None:
    assert [model.name for model in choose("qwen-14b", None, may_fetch=True).missing] == ["qwen-14b", "qwen-0.5b"]
    assert [model.name for model in choose("qwen-14b", None, may_fetch=False).missing] == ["qwen-14b"]
    assert [model.name for model in choose("qwen-14b", NO_DRAFT, may_fetch=True).missing] == ["qwen-14b"]


def test_a_model_is_never_its_own_recommended_draft() -> None:
    assert "qwen-14b:q2_k" in recommended_drafts(locate("qwen-14b"))
    assert "qwen-14b:q2_k" not in recommended_drafts(locate("qwen-14b:Q2_K"))


def test_what_is_missing_is_told_with_its_size_and_the_command() -> None:
    choice = choose("qwen-14b", "qwen-0.5b", may_fetch=False)
    assert str(missing_error(choice.missing)) == (
        "qwen-14b and qwen-0.5b are not on this machine (9.66 GB); fetch with `specrun pull qwen-14b qwen-0.5b`, "
        "or add --pull"
    )
    assert "(" not in str(missing_error(choose("org/a b-GGUF/x.gguf", None, may_fetch=False).missing))


@pytest.mark.parametrize("lost", ["blob", "link"])
def test_a_shard_that_is_gone_makes_the_model_missing(lost: str) -> None:
    path = put("qwen-14b")
    shard = path.with_name(shards(path.name)[1])
    (shard.resolve() if lost == "blob" else shard).unlink()
    assert locate("qwen-14b").path is None
    assert put("qwen-14b") == path
    assert locate("qwen-14b").path == path
