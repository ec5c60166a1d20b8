"""Which draft was made for a target."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specrun.catalog import made
from specrun.catalog.made import MadeDraft
from tests.models import random_llama, split


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return random_llama(tmp_path / "target.gguf")


def written(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"draft")
    return path


def test_a_draft_is_found_until_it_is_forgotten(target: Path) -> None:
    assert made.find(target) is None
    draft = MadeDraft(written(made.home(target) / "draft-q2_k-2of2.gguf"), "q2_k")
    made.register(target, draft)
    assert made.find(target) == draft
    assert made.forget(target) == (draft, 5)
    assert made.find(target) is None
    assert not made.home(target).exists()
    assert made.forget(target) is None


def test_a_draft_belongs_to_the_content_of_its_target(target: Path, tmp_path: Path) -> None:
    draft = MadeDraft(written(made.home(target) / "draft.gguf"), "q2_k")
    made.register(target, draft)
    copy = shutil.copy(target, tmp_path / "copy.gguf")
    target.unlink()
    assert made.find(copy) == draft
    assert made.find(target) is None
    assert made.find(random_llama(target, seed=1)) is None


def test_a_split_target(target: Path, tmp_path: Path) -> None:
    first = split(tmp_path / "parts.gguf", target, 2)
    draft = MadeDraft(written(made.home(first) / "draft.gguf"), "q2_k")
    made.register(first, draft)
    assert made.find(first) == draft
    assert made.find(target) is None


@pytest.mark.parametrize("content", ["", "{}", "[]", "[" * 100_000])
def test_a_damaged_description_loses_no_draft(target: Path, content: str) -> None:
    draft = MadeDraft(written(made.home(target) / "draft-q2_k-2of2.gguf"), "q2_k")
    made.register(target, draft)
    (made.home(target) / "draft.json").write_text(content)
    assert made.find(target) == MadeDraft(draft.path, "q2_k-2of2")
    assert made.find(target.with_name("not-here.gguf")) is None
    assert made.forget(target)
    assert made.find(target) is None


def test_a_new_draft_replaces_the_one_before(target: Path) -> None:
    old, new = (MadeDraft(written(made.home(target) / f"{i}.gguf"), "q2_k") for i in range(2))
    made.register(target, old)
    made.register(target, new)
    assert made.find(target) == new
    assert new.path.exists()
    assert not old.path.exists()
    made.register(target, new)
    assert new.path.exists()


def test_a_file_of_the_users_is_never_deleted(target: Path, tmp_path: Path) -> None:
    mine = MadeDraft(written(tmp_path / "mine.gguf"), "q2_k")
    made.register(target, mine)
    assert made.find(target) == mine
    made.register(target, MadeDraft(written(made.home(target) / "draft.gguf"), "q2_k"))
    made.register(target, mine)
    assert not (made.home(target) / "draft.gguf").exists()
    assert made.forget(target) == (mine, 0)
    assert mine.path.exists()


def test_the_data_folder_can_be_moved(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.register(target, MadeDraft(written(made.home(target) / "draft.gguf"), "q2_k"))
    made.folder().parent.rename(tmp_path / "elsewhere")
    monkeypatch.setenv("SPECRUN_DATA_DIR", str(tmp_path / "elsewhere"))
    found = made.find(target)
    assert found
    assert found.path.exists()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"path": 1, "how": ""}', "\x00"])
def test_a_broken_entry_counts_as_no_draft(target: Path, text: str) -> None:
    written(made.home(target) / "draft.json").write_text(text)
    assert made.find(target) is None
