"""Which draft a target gets: the fastest that was measured, else the draft made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog import embedded, made
from specrun.catalog.entries import catalog
from specrun.catalog.made import FastestDraft
from specrun.catalog.resolve import Fetcher, drafts_here, local_pair, way_to_draft
from specrun.errors import NoHubError
from tests.models import random_llama, random_mamba
from tests.other_programs import in_lm_studio


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
    (made.home(target) / "fastest.json").write_text("{")
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


def test_a_draft_that_was_trimmed_for_a_target_is_among_its_drafts_until_it_is_forgotten(target: Path) -> None:
    two = [made.trimmed_path(target, Path("draft.gguf"), n) for n in (8192, 16384)]
    for path in two:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(10))
    made.keep_fastest(target, FastestDraft("trimmed", two[1]))
    assert made.trimmed_drafts(target) == sorted(two)
    assert drafts_here(str(target)) == [str(path) for path in sorted(two)]
    assert made.forget_trimmed(target, but=two[1]) == 10
    assert made.trimmed_drafts(target) == [two[1]]
    assert made.find_fastest(target)
    assert made.forget_trimmed(target) == 10
    assert made.find_fastest(target) is None
    assert not made.home(target).exists()
    assert made.trimmed_drafts(embedded.TARGET) == []


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
