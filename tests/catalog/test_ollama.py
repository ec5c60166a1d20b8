"""Ollama's models: which are found, and by which names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specrun.catalog import ollama
from specrun.catalog.names import parse
from specrun.errors import MissingModelError
from tests.other_programs import in_ollama

LIBRARY = "registry.ollama.ai/library"


@pytest.fixture
def folder() -> Path:
    """Ollama's folder of models."""
    return Path(os.environ["OLLAMA_MODELS"])


def test_names_are_those_of_ollama_list(folder: Path, script: Path) -> None:
    for name in (f"{LIBRARY}/qwen2.5/7b", f"{LIBRARY}/llama3.2/latest", "registry.ollama.ai/me/mine/latest"):
        in_ollama(folder, name, script)
    path = in_ollama(folder, "hf.co/org/repo-GGUF/Q4_K_M", script)
    assert [model.name for model in ollama.models()] == [
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
    mario, plain = ollama.models()
    assert (mario.system, mario.template) == ("You are Mario.", "{{ .Prompt }}")
    assert (plain.system, plain.template) == (None, None)


def test_what_llama_cpp_cannot_run_is_left_out(folder: Path, script: Path) -> None:
    in_ollama(folder, f"{LIBRARY}/cloud/latest", None, template="x")
    in_ollama(folder, f"{LIBRARY}/adapted/latest", script, adapter="x")
    blob = in_ollama(folder, f"{LIBRARY}/half/latest", script)
    blob.write_bytes(script.read_bytes()[:-1])
    assert ollama.models() == []
    blob.unlink()
    blob.symlink_to(folder / "nowhere")
    assert ollama.models() == []


def test_the_user_s_folder_and_the_service_s(tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setattr(ollama, "_FOLDERS", ("~/.ollama/models", str(tmp_path / "service")))
    in_ollama(tmp_path / "service", f"{LIBRARY}/both/latest", script)
    in_ollama(tmp_path / "service", f"{LIBRARY}/service/latest", script)
    mine = in_ollama(tmp_path / "home/.ollama/models", f"{LIBRARY}/both/latest", script)
    assert [(model.name, model.path.parent.parent.parent.name) for model in ollama.models()] == [
        ("ollama:both:latest", ".ollama"),
        ("ollama:service:latest", tmp_path.name),
    ]
    assert ollama.models()[0].path == mine


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
    found = ollama.models()
    assert len(found) <= 1
    assert all(model.path.parent == folder / "blobs" for model in found)
