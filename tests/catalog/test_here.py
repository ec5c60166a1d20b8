"""Which models of this machine can be targets, by which names, and where they lie."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specrun.catalog import embedded, here
from specrun.catalog.cache import folder as repository
from specrun.catalog.entries import catalog
from specrun.catalog.info import pairs_of
from specrun.catalog.names import parse
from specrun.catalog.resolve import Model, locate, missing_error
from specrun.errors import MissingModelError, UsageError
from tests.eagle_heads import random_eagle3
from tests.models import edited, random_bert, split
from tests.mtp_targets import head_alone, random_mtp_qwen35
from tests.other_programs import in_lm_studio, in_ollama


def names() -> list[str]:
    """Names of the models that are found."""
    return [model.name for model in here.local_models()]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The user's home."""
    return tmp_path / "home"


@pytest.fixture
def lm_studio(home: Path) -> Path:
    """LM Studio's folder of models."""
    return home / ".lmstudio" / "models"


def in_hub_layout(root: Path, repo: str, file: str, model: Path) -> Path:
    """A model in a cache of the hub's layout."""
    path = repository(repo, root) / "snapshots" / ("0" * 40) / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(model)
    return path


def test_every_program_s_models_have_names_that_a_target_can_have(home: Path, lm_studio: Path, script: Path) -> None:
    entry = catalog()["llama-3b"]
    files = [edited(home.parent / f"{i}.gguf", script, {"general.name": str(i)}) for i in range(6)]
    paths = {
        "org/hub-GGUF:Q8_0": in_hub_layout(home.parent / "huggingface/hub", "org/hub-GGUF", "hub-Q8_0.gguf", files[0]),
        "org/new-GGUF:Q8_0": in_hub_layout(home / "llama.cpp", "org/new-GGUF", "new-Q8_0.gguf", files[1]),
        "org/sub-GGUF:Q8_0": in_hub_layout(home / "llama.cpp", "org/sub-GGUF", "sub/sub-Q8_0.gguf", files[2]),
        "pub/lm-GGUF:Q8_0": in_lm_studio(lm_studio, "pub/lm-GGUF/lm-Q8_0.gguf", files[3]),
        "llama-3b": in_lm_studio(lm_studio, f"{entry.repo}/{entry.file}", files[4]),
        "ollama:qwen2.5:7b": in_ollama(
            Path(os.environ["OLLAMA_MODELS"]), "registry.ollama.ai/library/qwen2.5/7b", files[5]
        ),
        "~/.lmstudio/models/loose.gguf": in_lm_studio(lm_studio, "loose.gguf", script),
    }
    found = here.local_models()
    assert {model.name: model.path for model in found} == paths
    assert {name: locate(name).path for name in paths} == paths
    assert {model.name: model.program for model in found if model.entry} == {"llama-3b": "LM Studio"}
    assert locate("org/sub-GGUF/sub/sub-Q8_0.gguf").path == paths["org/sub-GGUF:Q8_0"]
    assert locate("pub/lm-GGUF").path == paths["pub/lm-GGUF:Q8_0"]
    assert not locate("pub/lm-GGUF:Q4_K_M").path


def test_adapters_projectors_embeddings_heads_and_later_shards_are_left_out(lm_studio: Path, script: Path) -> None:
    for name, changes in {
        "adapter": {"general.type": "adapter"},
        "projector": {"general.type": "mmproj"},
        "reranker": {"llama.pooling_type": 4},
        "no-layers": {"llama.block_count": None},
        "mmproj-f16": {},
    }.items():
        edited(in_lm_studio(lm_studio, f"org/{name}/{name}.gguf", script), script, changes)
    random_bert(in_lm_studio(lm_studio, "org/embed/embed.gguf", script))
    (lm_studio / "org/half").mkdir()
    split(lm_studio / "org/half/half.gguf", script, 2)
    (lm_studio / "org/half/half-00002-of-00002.gguf").unlink()
    (lm_studio / "org/good").mkdir()
    split(lm_studio / "org/good/good.gguf", script, 2)
    assert names() == ["org/good/good-00001-of-00002.gguf"]


def test_a_head_of_this_machine_is_a_draft_but_no_target(lm_studio: Path, tmp_path: Path) -> None:
    head = in_lm_studio(lm_studio, "org/head/head.gguf", random_eagle3(tmp_path / "head.gguf"))
    assert names() == []
    assert [model.path for model in here.local_models(with_heads=True)] == [head]
    *beside, pair = pairs_of(Model("target", embedded.TARGET), "")
    assert [Path(one.draft).name for one in beside] == ["draft.gguf", "head.gguf"]
    assert (pair.draft, pair.cached, pair.checked, pair.difference) == ("org/head/head.gguf", True, True, None)


def test_a_draft_that_is_found_by_path_and_by_name_is_listed_once(
    lm_studio: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = in_lm_studio(lm_studio, "org/pair/draft.gguf", script)
    in_lm_studio(lm_studio, "org/pair/target.gguf", embedded.TARGET)
    monkeypatch.chdir(draft.parent)
    for folder in (draft.parent, Path()):
        pairs = pairs_of(Model("target", folder / "target.gguf"), "")
        assert [pair.draft for pair in pairs] == [str(folder / "draft.gguf")]


@pytest.mark.parametrize("file", ["MTP/m-Q8_0-MTP.gguf", "MTP/m-Q8_0.gguf", "mtp-m.gguf"])
def test_a_file_of_mtp_layers_alone_is_a_draft_but_no_target(tmp_path: Path, file: str) -> None:
    cache = tmp_path / "huggingface/hub"
    whole = random_mtp_qwen35(tmp_path / "whole.gguf")
    in_hub_layout(cache, "org/m-GGUF", "m-MTP-Q8_0.gguf", whole)
    head = in_hub_layout(cache, "org/m-GGUF", file, head_alone(tmp_path / "head.gguf", whole))
    assert names() == ["org/m-GGUF:Q8_0"]
    assert locate("org/m-GGUF:Q8_0").path == cache / head.relative_to(cache).parents[-4] / "m-MTP-Q8_0.gguf"
    assert {model.name for model in here.local_models(with_heads=True)} == {"org/m-GGUF:Q8_0", f"org/m-GGUF/{file}"}


def test_what_is_damaged_or_may_not_be_read_is_left_out(home: Path, lm_studio: Path, script: Path) -> None:
    in_lm_studio(lm_studio, "org/a/a.gguf", script)
    (lm_studio / "org/a/broken.gguf").write_bytes(b"GGUF")
    (lm_studio / "org/a/text.gguf").write_text("text")
    (lm_studio / "org/a/empty.gguf").touch()
    (lm_studio / "org/a/gone.gguf").symlink_to(home / "nowhere")
    (lm_studio / "org/a/folder.gguf").mkdir()
    (lm_studio / "org/circle").symlink_to(lm_studio)
    os.mkfifo(lm_studio / "org/a/pipe.gguf")
    (home / ".lmstudio/settings.json").write_text("[]")
    (home / ".ollama").write_text("no folder")
    assert names() == ["org/a/a.gguf"]


def test_lm_studio_may_keep_its_models_elsewhere(home: Path, script: Path, random_model: Path) -> None:
    (home / "moved").mkdir(parents=True)
    (home / ".lmstudio-home-pointer").write_text(str(home / "moved"))
    (home / "moved/settings.json").write_text(json.dumps({"downloadsFolder": str(home / "large")}))
    in_lm_studio(home / "large", "org/a/a.gguf", script)
    in_lm_studio(home / ".cache/lm-studio/models", "org/old/old.gguf", random_model)
    assert sorted(names()) == ["org/a/a.gguf", "org/old/old.gguf"]


@pytest.mark.parametrize("pointer", ["", "elsewhere", "\0"])
def test_the_current_folder_is_not_lm_studio_s(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch, pointer: str
) -> None:
    home.mkdir(exist_ok=True)
    monkeypatch.chdir(home)
    for folder in ("models", "elsewhere/models"):
        in_lm_studio(home / folder, "org/mine/mine.gguf", script)
    (home / ".lmstudio-home-pointer").write_text(pointer)
    assert names() == []


def test_a_file_that_two_programs_have_is_named_once_and_what_came_last_comes_first(
    home: Path, lm_studio: Path, script: Path, random_model: Path
) -> None:
    new = in_lm_studio(lm_studio, "org/new/new.gguf", random_model)
    old = in_hub_layout(home.parent / "huggingface/hub", "org/old", "old.gguf", script)
    (lm_studio / "org/linked").mkdir()
    (lm_studio / "org/linked/old.gguf").symlink_to(old)
    os.utime(new, (2e9, 2e9))
    assert names() == ["org/new/new.gguf", "org/old/old.gguf"]


def test_two_files_of_one_quantization_have_their_own_names(lm_studio: Path, script: Path, random_model: Path) -> None:
    in_lm_studio(lm_studio, "org/a/first-Q8_0.gguf", script)
    in_lm_studio(lm_studio, "org/a/second-Q8_0.gguf", random_model)
    assert sorted(names()) == ["org/a/first-Q8_0.gguf", "org/a/second-Q8_0.gguf"]
    with pytest.raises(UsageError, match=r"org/a:Q8_0 can be first-Q8_0.gguf, second-Q8_0.gguf; name one: org/a/first"):
        locate("org/a:Q8_0")


def test_a_name_by_quantization_means_no_file_that_is_left_out(lm_studio: Path, script: Path) -> None:
    in_lm_studio(lm_studio, "org/a/model-Q8_0.gguf", script)
    random_bert(in_lm_studio(lm_studio, "org/a/embed-Q8_0.gguf", script))
    assert [locate(name).path for name in names()] == [lm_studio / "org/a/model-Q8_0.gguf"]


def test_a_catalog_s_model_that_another_program_has_is_not_missing(lm_studio: Path, script: Path) -> None:
    assert "fetch with" in str(missing_error([locate("llama-3b").hub]))  # type: ignore[list-item]
    entry = catalog()["llama-3b"]
    path = in_lm_studio(lm_studio, f"{entry.repo}/{entry.file}", script)
    assert locate("llama-3b").path == path


def test_a_user_without_a_home_has_the_models_that_need_none(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwd = pytest.importorskip("pwd")

    def nobody(_: object) -> None:
        raise KeyError

    path = in_hub_layout(home.parent / "huggingface/hub", "org/hub-GGUF", "hub-Q8_0.gguf", script)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("OLLAMA_MODELS")
    for name in ("getpwuid", "getpwnam"):
        monkeypatch.setattr(pwd, name, nobody)
    assert [model.path for model in here.local_models()] == [path]
    assert locate("org/hub-GGUF:Q8_0").path == path
    assert locate("~nobody/model.gguf").path == Path("~nobody/model.gguf")


# --- Ollama -----------------------------------------------------------------------------------------------------------


LIBRARY = "registry.ollama.ai/library"


@pytest.fixture
def folder() -> Path:
    """Ollama's folder of models."""
    return Path(os.environ["OLLAMA_MODELS"])


def test_names_are_those_of_ollama_list(folder: Path, script: Path) -> None:
    for name in (f"{LIBRARY}/qwen2.5/7b", f"{LIBRARY}/llama3.2/latest", "registry.ollama.ai/me/mine/latest"):
        in_ollama(folder, name, script)
    path = in_ollama(folder, "hf.co/org/repo-GGUF/Q4_K_M", script)
    assert [model.name for model in here.ollama_models()] == [
        "ollama:hf.co/org/repo-GGUF:Q4_K_M",
        "ollama:llama3.2:latest",
        "ollama:me/mine:latest",
        "ollama:qwen2.5:7b",
    ]
    names = [
        "ollama:qwen2.5:7b",
        "qwen2.5:7b",
        "ollama://qwen2.5:7b",
        "OLLAMA:Qwen2.5:7B",
        "ollama:llama3.2",
        "llama3.2",
    ]
    assert {parse(name) for name in names} == {path}
    with pytest.raises(MissingModelError, match=r"`ollama pull qwen2\.5:14b` fetches it"):
        parse("ollama:qwen2.5:14b")


def test_texts_of_a_model(folder: Path, script: Path) -> None:
    in_ollama(folder, f"{LIBRARY}/mario/latest", script, template="{{ .Prompt }}", system=b" You are Mario.\n")
    in_ollama(folder, f"{LIBRARY}/plain/latest", script, system=b"\xff")
    mario, plain = here.ollama_models()
    assert (mario.system, mario.template) == ("You are Mario.", "{{ .Prompt }}")
    assert (plain.system, plain.template) == (None, None)


def test_what_llama_cpp_cannot_run_is_left_out(folder: Path, script: Path) -> None:
    in_ollama(folder, f"{LIBRARY}/cloud/latest", None, template="x")
    in_ollama(folder, f"{LIBRARY}/adapted/latest", script, adapter="x")
    blob = in_ollama(folder, f"{LIBRARY}/half/latest", script)
    blob.write_bytes(script.read_bytes()[:-1])
    assert here.ollama_models() == []
    blob.unlink()
    blob.symlink_to(folder / "nowhere")
    assert here.ollama_models() == []


def test_the_user_s_folder_and_the_service_s(tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setattr(here, "_OLLAMA_FOLDERS", ("~/.ollama/models", str(tmp_path / "service")))
    in_ollama(tmp_path / "service", f"{LIBRARY}/both/latest", script)
    in_ollama(tmp_path / "service", f"{LIBRARY}/service/latest", script)
    mine = in_ollama(tmp_path / "home/.ollama/models", f"{LIBRARY}/both/latest", script)
    assert [(model.name, model.path.parent.parent.parent.name) for model in here.ollama_models()] == [
        ("ollama:both:latest", ".ollama"),
        ("ollama:service:latest", tmp_path.name),
    ]
    assert here.ollama_models()[0].path == mine


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.one_of(st.binary(max_size=40), st.text(max_size=40).map(str.encode)), st.integers(0, 900))
def test_any_damage_to_a_manifest_leaves_the_model_out_or_as_it_was(
    folder: Path, script: Path, noise: bytes, at: int
) -> None:
    in_ollama(folder, f"{LIBRARY}/good/latest", script)
    manifest = folder / "manifests" / LIBRARY / "good" / "latest"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:at] + noise + whole[at + len(noise) :])
    found = here.ollama_models()
    assert len(found) <= 1
    assert all(model.path.parent == folder / "blobs" for model in found)
