"""The catalog compared with a hub."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.check_catalog import compared, main
from specrun.catalog.entries import catalog
from specrun.catalog.file_names import shards
from specrun.errors import NoHubError
from tests.hub import Hub

ENTRY = catalog()["qwen-14b"]


def said_of_it(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="1 of 1 differ from the hub"):
        main([ENTRY.alias])
    return capsys.readouterr().out


def test_what_differs_is_named(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no repository" in said_of_it(capsys)
    repository = hub.add(ENTRY.repo, dict.fromkeys(shards(ENTRY.file), b"GGUF"))
    repository.commit, repository.licence = ENTRY.revision or repository.commit, ENTRY.licence or ""
    (only,) = compared(ENTRY)[0]
    assert only == f"size in bytes is {4 * len(shards(ENTRY.file))} on the hub, {ENTRY.bytes} in the catalog"
    repository.licence, repository.gguf = "mit", {"architecture": "llama", "context_length": 5}
    said = said_of_it(capsys)
    for part in ("licence is mit on the hub, apache-2.0 in the catalog", "architecture is llama", "context is 5"):
        assert part in said
    del repository.files[shards(ENTRY.file)[1]]
    assert "lacks" in said_of_it(capsys)


def test_what_agrees_is_ok(hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    repository = hub.add(ENTRY.repo, dict.fromkeys(shards(ENTRY.file), b"GGUF"))
    repository.commit, repository.licence = ENTRY.revision or repository.commit, ENTRY.licence or ""
    small = replace(ENTRY, bytes=4 * len(shards(ENTRY.file)))
    monkeypatch.setattr("scripts.check_catalog.catalog", lambda: {ENTRY.alias: small})
    main([])
    assert capsys.readouterr().out.startswith("qwen-14b: ok, ")


def test_without_a_network_nothing_is_said_of_the_catalog(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(NoHubError):
        compared(ENTRY)
    assert not hub.requests
