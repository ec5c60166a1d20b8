"""A hub, or a catalog, that lies: nothing is written outside of the cache, and the error is one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from specrun.catalog import cache
from specrun.catalog.entries import catalog
from specrun.catalog.hub import HubName
from specrun.catalog.names import parse
from specrun.errors import HubError, UsageError
from tests.catalog.test_download import Shown
from tests.conftest import Specrun, SpecrunHere
from tests.hub import COMMIT, Fault, Hub

REPO, FILE = "org/model-GGUF", "model-Q4_K_M.gguf"
CONTENT = b"GGUF" + bytes(1000)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    monkeypatch.setattr(cache.time, "sleep", lambda _: None)
    return Shown()


def pull(shown: Shown) -> Path:
    model = parse(f"{REPO}:Q4_K_M")
    assert isinstance(model, HubName)
    return cache.pull(cache.look_up(model, shown), shown)


def files_of(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def sibling(**said: Any) -> dict[str, Any]:
    return {"rfilename": FILE, "size": len(CONTENT), "blobId": "a" * 40} | said


@pytest.mark.parametrize(
    "said",
    [
        {"sha": "../../../../escape"},
        {"sha": "/escape"},
        {"sha": None},
        {"siblings": [sibling(lfs={"size": 1004, "sha256": "../../../../escape", "pointerSize": 1})]},
        {"siblings": [sibling(blobId="../escape")]},
        {"siblings": [sibling(size=-5)]},
        {"siblings": [sibling(rfilename="../../../escape-Q4_K_M.gguf")]},
        {"siblings": [sibling(rfilename="/escape-Q4_K_M.gguf")]},
        {"siblings": [sibling(rfilename="a\0b-Q4_K_M.gguf")]},
        {"siblings": [sibling(rfilename="\x1b[2J/../../x-Q4_K_M.gguf")]},
        {"siblings": [sibling(rfilename=["x"])]},
        {"siblings": "everything"},
        {"siblings": [1, 2]},
        {"siblings": [sibling(size="many")]},
        {"gguf": [1], "sha": None},
        {"tags": 7},
        {"cardData": "x"},
    ],
    ids=str,
)
def test_what_a_hub_says_stays_in_the_cache(hub: Hub, shown: Shown, tmp_path: Path, said: dict[str, Any]) -> None:
    hub.add(REPO, {FILE: CONTENT}).said = said
    before = files_of(tmp_path)
    with pytest.raises(HubError) as raised:
        pull(shown)
    message = str(raised.value)
    assert message.isprintable()
    assert not {path for path in files_of(tmp_path) - before if "escape" in path.name or ".gguf" in path.name}


def test_a_hub_that_sends_without_end_fills_no_disk(hub: Hub, shown: Shown, tmp_path: Path) -> None:
    content = bytes(3_000_000)
    hub.add(REPO, {FILE: content}).said = {"siblings": [sibling(size=1000)]}
    with pytest.raises(HubError, match=f"sends 3000000 bytes instead of {FILE}, which has 1000"):
        pull(shown)
    (unfinished,) = [cache.folder(REPO) / "blobs" / f"{'a' * 40}.incomplete"]
    unfinished.write_bytes(bytes(500))
    with pytest.raises(HubError, match="sends more than the 1000 bytes"):
        pull(shown)
    assert sum(path.stat().st_size for path in files_of(tmp_path)) < 300_000


@pytest.mark.parametrize("wait", ["1e9", "inf", "nan", "-5", "soon"])
def test_no_hub_is_waited_for_for_days(hub: Hub, monkeypatch: pytest.MonkeyPatch, wait: str) -> None:
    waited: list[float] = []
    monkeypatch.setattr(cache.time, "sleep", waited.append)
    hub.add(REPO, {FILE: CONTENT})
    hub.faults += [Fault("/api/models", status=429, headers={"Retry-After": wait}) for _ in range(9)]
    with pytest.raises(HubError, match="too many requests"):
        pull(Shown())
    assert all(0 < seconds <= 600 for seconds in waited)


@pytest.mark.parametrize(
    "keys",
    [
        'repo = "../../x"\nfile = "a.gguf"',
        'repo = "org/x"\nfile = "../../a.gguf"',
        'repo = "org/x"\nfile = "/etc/a.gguf"',
        'repo = "org/x"\nfile = "a\\u0000.gguf"',
        'repo = "org/x"\nfile = "a.gguf"\nrevision = "../../../escape"',
    ],
)
def test_a_catalog_cannot_name_what_is_outside(tmp_path: Path, keys: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text(f"[models.mine]\n{keys}\n")
    with pytest.raises(UsageError, match=r'in \[models."mine"\] must be') as raised:
        catalog()
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("name", ["org/x/../../../a.gguf", "org/../a/b.gguf", "../x:Q4_K_M", "org/..:Q4"])
def test_a_name_cannot_mean_what_is_outside(name: str) -> None:
    if name.startswith("."):
        assert isinstance(parse(name), Path)
        return
    with pytest.raises(UsageError) as raised:
        parse(name)
    assert str(raised.value).isprintable()


def test_a_link_out_of_the_cache_is_not_followed_to_delete(here: SpecrunHere, tmp_path: Path) -> None:
    precious = tmp_path / "precious.gguf"
    precious.write_bytes(CONTENT)
    snapshot = cache.folder(REPO) / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / FILE).symlink_to(precious)
    (cache.folder(REPO) / "refs").mkdir()
    (cache.folder(REPO) / "refs" / "main").write_text(COMMIT)
    (cache.folder(REPO) / "blobs").mkdir()
    result = here("models", "rm", f"{REPO}:Q4_K_M", "--yes")
    assert precious.exists()
    result.assert_fails(HubError.exit_code, "leads out of the cache", "delete the link")


TOKEN = "hf_abcdefghijklmnopqrst"


def _refused(hub: Hub) -> None:
    hub.token = "another"


def _redirected(hub: Hub) -> None:
    signed = {"Location": f"{hub.cdn}/cdn/{'0' * 64}?Signature=topsecret&Key=1"}
    for _ in range(3):
        hub.faults += [Fault("/resolve/", status=302, headers=signed), Fault("/cdn/", status=403)]


@pytest.mark.parametrize("trouble", [_refused, _redirected])
@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_no_token_is_in_what_a_failed_download_says(
    specrun: Specrun, hub: Hub, trouble: Callable[[Hub], None], debug: list[str]
) -> None:
    hub.add(REPO, {FILE: CONTENT})
    hub.token = TOKEN
    trouble(hub)
    result = specrun(*debug, "pull", f"{REPO}:Q4_K_M", "--yes", HF_TOKEN=TOKEN)
    assert result.code == HubError.exit_code
    said = result.stdout + result.stderr
    assert ("Traceback" in said) is bool(debug)
    assert not [secret for secret in (TOKEN, "topsecret", "Bearer hf") if secret in said]


def test_a_password_in_the_hubs_address_is_not_shown(
    here: SpecrunHere, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    del shown
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://me:topsecret@127.0.0.1:9")
    result = here("pull", f"{REPO}:Q4_K_M", "--yes")
    assert result.code == HubError.exit_code
    assert "http://***@127.0.0.1:9" in result.stderr
    assert "topsecret" not in result.stderr


def test_a_token_does_not_follow_a_redirect_to_another_host(here: SpecrunHere, hub: Hub) -> None:
    hub.add(REPO, {FILE: CONTENT})
    hub.token = TOKEN
    assert here("pull", f"{REPO}:Q4_K_M", "--yes", HF_TOKEN=TOKEN).code == 0
    sent = {path.startswith("/cdn/"): "authorization" in headers for _, path, headers in hub.requests}
    assert sent == {False: True, True: False}
