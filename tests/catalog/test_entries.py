"""The shipped catalog, and the user's own catalog that overrides it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specrun.catalog import entries
from specrun.catalog.entries import COMPANIONS, Shape, catalog, shipped
from specrun.catalog.file_names import quantization, shards
from specrun.catalog.hub import HubName
from specrun.catalog.names import parse
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
        assert set(entry.companions) <= set(COMPANIONS)
        for name in entry.drafts:
            draft = parse(name)
            assert isinstance(draft, HubName)
            assert draft.entry
            assert draft.entry.family == entry.family
            assert name != alias
            assert (draft.entry.expected_bytes or 0) < (entry.expected_bytes or 0) or ":" in name


def test_what_ships_is_known_well_enough_to_be_placed() -> None:
    for alias, entry in catalog().items():
        assert entry.shape, alias
        assert entry.vocabulary, alias
        assert entry.expected_bytes, alias
        # A wrong number of weights or bytes would show here: these are the means of mixes of types around 4 and 8 bits.
        low, high = (8.4, 9.0) if entry.quantization.lower() == "q8_0" else (4.2, 6.0)
        assert low < 8 * entry.expected_bytes / entry.shape.parameters < high, alias
        embedding, output = entry.table_bytes
        assert 0 < max(embedding, output) < 0.75 * entry.expected_bytes, alias
        assert 0 <= entry.expert_bytes < entry.expected_bytes, alias


def test_families_say_what_they_are_and_what_drafts_for_them() -> None:
    for name, family in shipped()["families"].items():
        assert family["about"], name
        members = [entry for entry in catalog().values() if entry.family == name]
        assert members, name
        assert any("sibling" in entry.companions for entry in members) or not any(
            draft for entry in members for draft in entry.drafts if ":" not in draft
        ), name


def test_a_mixture_has_no_recommended_draft() -> None:
    """Each drafted token makes its passes read further experts; `--draft` names one anyway."""
    mixtures = [entry for entry in catalog().values() if entry.kind == "moe"]
    assert len(mixtures) > 10
    assert not any(entry.drafts for entry in mixtures)


@pytest.mark.parametrize(
    ("alias", "kind"),
    [("qwen3.6-35b-a3b", "moe"), ("qwen3.6-27b", "hybrid"), ("gpt-oss-20b", "moe"), ("qwen-14b", "dense")],
)
def test_kinds(alias: str, kind: str) -> None:
    assert catalog()[alias].kind == kind


def test_the_share_of_experts() -> None:
    """Of ten weights two are used by every token, and of eight in experts a token uses a quarter."""
    shape = Shape(parameters=10, active=4, layers=1, width=1, kv=1, experts=8, experts_used=2)
    assert shape.expert_share == pytest.approx(0.8)
    assert Shape(parameters=10, layers=1, width=1, kv=1).expert_share == 0


@pytest.mark.parametrize(
    "alias",
    [
        *("qwen-0.5b", "qwen-14b", "qwen-coder-7b", "qwen3-8b", "llama-8b", "gemma-12b", "qwen3.6-27b", "gpt-oss-20b"),
        *("qwen3-next-80b", "nemotron-3-30b-a3b", "lfm2-2.6b", "granite-4.0-h-small", "kimi-linear-48b-a3b"),
        *("glm-4.5-air", "gemma4-31b", "devstral-24b", "deepseek-v4-flash", "qwen1.5-7b", "qwen1.5-0.5b"),
    ],
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


def test_ones_own_catalog_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[Path]()
    parse = entries._read
    monkeypatch.setattr(entries, "_read", lambda path: read.append(path) or parse(path))
    for file in ("one-Q8_0.gguf", "another-Q8_0.gguf"):
        write(tmp_path, f'[models.mine]\nrepo = "me/mine"\nfile = "{file}"\n')
        assert catalog()["mine"].file == file, "what changed just now is read in any case"
        os.utime(tmp_path / "config" / "models.toml", (1e9, 1e9))
        read.clear()
        assert [catalog()["mine"].file for _ in range(3)] == [file] * 3
        assert len(read) == 1


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
        ('[models.x]\nrepo = "a/b"\nfile = "c.gguf"\ncompanions = ["x"]\n', "x .* is no companion; .*sibling"),
        ('[models.x]\nrepo = "a/b"\nfile = "c.gguf"\nother_drafts = { y = 0.9 }\n', "y in other_drafts .* of percent"),
        ('[models.x]\nrepo = "a/b"\nfile = "c.gguf"\nshape = { layers = 3 }\n', "shape .* numbers above 0"),
        (
            '[models.x]\nrepo = "a/b"\nfile = "c.gguf"\n'
            "shape = { parameters = 9, layers = 3, width = 4, kv = 5, active = 3, experts = 2, experts_used = 2 }\n",
            "uses all experts",
        ),
    ],
)
def test_a_catalog_of_ones_own_that_is_wrong_is_told_in_one_line(tmp_path: Path, text: str, part: str) -> None:
    write(tmp_path, text)
    with pytest.raises(UsageError, match=part) as error:
        catalog()
    assert "\n" not in str(error.value)
    assert "models.toml" in str(error.value)


def test_drafts_with_another_tokenizer_are_models_of_other_families() -> None:
    entries = catalog()
    named = [(entry, name) for entry in entries.values() for name in entry.other_drafts]
    assert {"gpt-oss-20b", "devstral-24b"} <= {entry.alias for entry, _ in named}
    for entry, name in named:
        assert entries[name].family != entry.family
        assert not entry.drafts
