"""The shipped catalog, and the user's own catalog that overrides it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog.entries import catalog
from specrun.catalog.names import HubName, parse
from specrun.catalog.split import quantization, shards
from specrun.errors import UsageError


def write(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "models.toml").write_text(text, encoding="utf-8")


def test_what_ships_is_consistent() -> None:
    entries = catalog()
    for alias, entry in entries.items():
        assert alias == alias.lower()
        assert quantization(entry.file) == entry.quantization
        assert shards(entry.file)[0] == entry.file
        assert entry.family
        assert entry.licence
        assert entry.context
        assert entry.architecture
        assert not (entry.drafts and not entry.trees)
        for name in entry.drafts:
            draft = parse(name)
            assert isinstance(draft, HubName)
            assert draft.entry
            assert draft.entry.family == entry.family
            assert name != alias


@pytest.mark.parametrize(
    "alias", ["qwen-0.5b", "qwen-14b", "qwen-coder-7b", "qwen3-8b", "llama-8b", "gemma-12b", "mistral-7b"]
)
def test_families_that_people_run_are_there(alias: str) -> None:
    assert alias in catalog()


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    write(tmp_path, '[models.mine]\nrepo = "me/mine-GGUF"\nfile = "mine-Q5_K_M.gguf"\n')
    entry = catalog()["mine"]
    assert (entry.repo, entry.quantization, entry.trees, entry.drafts) == ("me/mine-GGUF", "Q5_K_M", True, ())
    assert "qwen-14b" in catalog()


def test_a_key_of_ones_own_changes_only_that(tmp_path: Path) -> None:
    before = catalog()["qwen-14b"]
    write(tmp_path, '[models.qwen-14b]\ndrafts = ["qwen-1.5b"]\n[families."qwen2.5"]\ncontext = 7\n')
    after = catalog()["qwen-14b"]
    assert (after.drafts, after.context) == (("qwen-1.5b",), 7)
    assert (after.repo, after.file) == (before.repo, before.file)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[models", "is not TOML"),
        ("x = " + "[" * 100_000, "nested too deeply"),
        ("[model.x]\n", r"\[model\] is unknown"),
        ("models = 3\n", r"\[models\] must be a table"),
        ("[models]\nx = 3\n", "must be a table"),
        ('[models.x]\nrepo = "a/b"\n', "needs a file"),
        ('[models.x]\nrepo = "a/b"\nfile = "c.gguf"\nsize = 3\n', "size .* is unknown; keys are .*bytes"),
        ('[models.x]\nrepo = "a/b"\nfile = "c.gguf"\nbytes = "3"\n', "bytes .* must be a int; got '3'"),
        ('[models.x]\nrepo = "a/b"\nfile = "c.gguf"\ndrafts = [3]\n', "drafts .* must be a list"),
        ('[models.qwen-0.5b]\nrepo = "a/b"\n', "a name with a dot must be quoted"),
    ],
)
def test_a_catalog_of_ones_own_that_is_wrong_is_told_in_one_line(tmp_path: Path, text: str, part: str) -> None:
    write(tmp_path, text)
    with pytest.raises(UsageError, match=part) as error:
        catalog()
    assert "\n" not in str(error.value)
    assert "models.toml" in str(error.value)
