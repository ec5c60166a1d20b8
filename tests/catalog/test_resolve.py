"""Which target and draft the names on a command line mean, with and without a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog import cache, embedded, made
from specrun.catalog.entries import catalog
from specrun.catalog.file_names import shards
from specrun.catalog.made import FastestDraft
from specrun.catalog.resolve import (
    NO_DRAFT,
    Fetcher,
    choose,
    drafts_here,
    local_pair,
    locate,
    missing_error,
    recommended_drafts,
    way_to_draft,
)
from specrun.errors import NoHubError
from specrun.locations import data_dir
from tests.models import random_llama, random_mamba
from tests.other_programs import in_lm_studio


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


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return random_llama(tmp_path / "target.gguf")


def pair(target: str | None, draft: str | None = None) -> tuple[Path, Path | None, list[str]]:
    notes: list[str] = []
    return (*local_pair(target, draft, True, Fetcher(False), notes.append), notes)


def test_a_draft_is_found_until_it_is_forgotten(target: Path, tmp_path: Path) -> None:
    assert made.find_fastest(target) is None
    draft = FastestDraft("small", tmp_path / "small.gguf")
    made.keep_fastest(target, draft)
    assert made.find_fastest(target) == draft
    made.forget_fastest(target)
    assert made.find_fastest(target) is None
    assert not made.home(target).exists()
    made.forget_fastest(target)


def test_a_damaged_entry_is_as_good_as_none(target: Path) -> None:
    made.keep_fastest(target, FastestDraft("none", None))
    (kept,) = (data_dir() / "fastest-drafts").iterdir()
    kept.write_text("{")
    assert made.find_fastest(target) is None


def test_the_fastest_draft_is_taken_unless_another_is_named(target: Path, tmp_path: Path) -> None:
    compared = random_llama(tmp_path / "compared.gguf")
    made.register(target, made.MadeDraft(random_llama(tmp_path / "made.gguf"), "q2_k"))
    made.keep_fastest(target, FastestDraft("compared", compared))
    assert pair(str(target))[:2] == (target, compared)
    assert "compared, the fastest" in pair(str(target))[2][0]
    assert pair(str(target), str(embedded.DRAFT))[1] == embedded.DRAFT
    assert pair(str(target), "none")[1] is None


def test_without_a_draft_where_that_was_fastest(target: Path) -> None:
    made.keep_fastest(target, FastestDraft("none", None))
    assert pair(str(target))[:2] == (target, None)


def test_a_draft_that_is_gone_is_replaced_by_the_made_one(target: Path, tmp_path: Path) -> None:
    own = random_llama(tmp_path / "made.gguf")
    made.register(target, made.MadeDraft(own, "q2_k"))
    made.keep_fastest(target, FastestDraft("gone", tmp_path / "gone.gguf"))
    assert pair(str(target))[:2] == (target, own)
    assert "is gone" in pair(str(target))[2][0]


def test_the_drafts_of_a_target_on_this_machine(target: Path, tmp_path: Path) -> None:
    assert drafts_here(None) == [str(embedded.DRAFT)]
    assert drafts_here(str(target)) == []
    own = random_llama(tmp_path / "made.gguf")
    made.register(target, made.MadeDraft(own, "q2_k"))
    assert drafts_here(str(target)) == [str(own)]
    own.unlink()
    assert drafts_here(str(target)) == []


@pytest.mark.parametrize("is_offline", [True, False])
def test_without_a_connection_a_target_that_is_here_does_without_a_draft(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_offline: bool
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", is_offline)  # else nobody listens
    entry = catalog()["llama-3b"]
    here = in_lm_studio(tmp_path / "home/.lmstudio/models", f"{entry.repo}/{entry.file}", script)
    assert local_pair("llama-3b", None, True, Fetcher(True), print) == (here, None)
    assert way_to_draft("llama-3b") == "`specrun pull llama-1b` fetches one"
    with pytest.raises(NoHubError):
        local_pair("llama-3b", "llama-1b", True, Fetcher(True), print)
    with pytest.raises(NoHubError):
        local_pair("llama-8b", None, True, Fetcher(True), print)


def test_whoever_has_a_file_and_no_draft_is_told_how_to_make_one(target: Path, tmp_path: Path) -> None:
    assert way_to_draft(str(target)) == f"`specrun models make-draft {target}` makes one"
    odd = target.rename(tmp_path / "a target.gguf")
    assert way_to_draft(str(odd)) == f"`specrun models make-draft '{odd}'` makes one"
    assert (
        way_to_draft(str(random_mamba(tmp_path / "mamba.gguf"))) == "a smaller model of its family can be its --draft"
    )
    made.keep_fastest(odd, FastestDraft("none", None))
    assert way_to_draft(str(odd)) is None
    assert way_to_draft(None) is not None
