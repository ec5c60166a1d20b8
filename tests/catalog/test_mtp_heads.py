"""MTP layers in the target's file and in files of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog import embedded, layer_states
from specrun.catalog.entries import TABLES
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import Head, check_head, check_no_head, drafting_head, head_in, own_head
from specrun.catalog.info import facts, lines, pairs_of
from specrun.catalog.resolve import Fetcher, Model, drafts_here, local_pair, way_to_draft
from specrun.errors import ModelFileError, PairError
from specrun.llama.streaming.address_space import PAGE
from tests.mtp_targets import head_alone, random_mtp_glm4_moe, random_mtp_qwen35, random_mtp_step35, trunk_alone


def read(path: Path) -> GgufFile:
    return GgufFile.read(path)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return random_mtp_step35(tmp_path / "whole.gguf")


def test_a_target_with_such_layers_is_a_model_that_has_a_head(whole: Path, tmp_path: Path) -> None:
    n_embd = read(whole).n_embd
    assert own_head(read(whole)) == Head("mtp", (), n_embd, is_own=True)
    assert head_in(read(whole)) is None
    check_no_head(read(whole))
    assert dict(lines(facts(Model("whole", whole))))["MTP layers"] == "can draft (--draft mtp)"
    trunk, alone = trunk_alone(tmp_path / "trunk.gguf", whole), head_alone(tmp_path / "mtp.gguf", whole)
    assert own_head(read(trunk)) is None
    assert head_in(read(trunk)) is None
    assert own_head(read(alone)) is None
    assert head_in(read(alone)) == Head("mtp", (), n_embd)
    with pytest.raises(ModelFileError, match="is an MTP head, which writes nothing by itself"):
        check_no_head(read(alone))


def test_layers_that_llama_cpp_cannot_draft_with_are_named(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "mtp", frozenset())
    told = dict(lines(facts(Model("whole", whole))))
    assert told["MTP layers"] == "llama.cpp cannot draft with those of step35 models"
    assert pairs_of(Model("whole", whole), "") == []


def test_a_targets_own_layers_are_one_of_its_pairs(whole: Path) -> None:
    (pair,) = pairs_of(Model("whole", whole), "")
    assert (pair.draft, pair.recommended, pair.checked, pair.difference) == ("mtp", False, True, None)


@pytest.mark.slow
def test_which_head_drafts(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trunk, alone = trunk_alone(tmp_path / "trunk.gguf", whole), head_alone(tmp_path / "mtp.gguf", whole)
    monkeypatch.chdir(tmp_path)
    assert drafting_head(read(Path("whole.gguf")), read(whole)) == own_head(read(whole))
    assert drafting_head(read(trunk), read(alone)) == head_in(read(alone))
    assert drafting_head(read(trunk), read(trunk)) is None


def test_layers_of_another_architecture_are_refused(whole: Path, tmp_path: Path) -> None:
    other = head_alone(tmp_path / "mtp.gguf", random_mtp_qwen35(tmp_path / "qwen.gguf"))
    head = head_in(read(other))
    assert head
    with pytest.raises(PairError, match="its layers are qwen35's, and the target is step35"):
        check_head(read(whole), read(other), head)


def test_the_draft_named_mtp_is_the_targets_own(whole: Path) -> None:
    fetcher, notes = Fetcher(False), list[str]()
    assert local_pair(str(whole), "mtp", True, fetcher, notes.append) == (whole, whole)
    assert local_pair(str(whole), "mtp", False, fetcher, notes.append) == (whole, None)
    assert notes == []
    assert local_pair(str(whole), None, True, fetcher, notes.append) == (whole, None), "tune has to say so"
    assert notes == []
    assert way_to_draft(str(whole)) == "`specrun tune` measures whether its MTP layers pay (--draft mtp)"
    assert drafts_here(str(whole)) == ["none", "mtp"]
    with pytest.raises(PairError, match=r"target\.gguf has no MTP layers"):
        local_pair(str(embedded.TARGET), "mtp", True, fetcher, notes.append)


def test_streamed_layers_are_those_that_every_pass_computes(whole: Path, tmp_path: Path) -> None:
    file = read(whole)
    without, with_them = (layer_states.weight_pages(file, PAGE, with_mtp) for with_mtp in (False, True))
    assert len(without.layers) == len(with_them.layers) == file.n_computed_layers == file.n_layers - 1
    mtp = file.layer_bytes[-1]
    assert layer_states.n_bytes(with_them.others) - layer_states.n_bytes(without.others) > 0.9 * mtp

    mixture = read(random_mtp_glm4_moe(tmp_path / "mixture.gguf"))
    found, found_with = (layer_states.expert_pages(mixture, PAGE, with_mtp) for with_mtp in (False, True))
    assert list(found.layers) == list(found_with.layers) == [1]
    assert layer_states.n_bytes(found_with.dense) - layer_states.n_bytes(found.dense) > 0.9 * mixture.expert_bytes[-1]
