"""Downloads through the hub's real client from a hub on this machine: complete, interrupted and resumed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import numpy as np
import pytest

from specrun.catalog import cache
from specrun.catalog.hub import HubName, cache_dir
from specrun.catalog.hub.client import RemoteModel
from specrun.catalog.names import parse
from specrun.errors import HubError, NoHubError, UsageError
from tests.hub import COMMIT, Fault, Hub, Repository
from tests.waiting import wait_until

REPO = "org/model-GGUF"
FILE = "model-Q4_K_M.gguf"
NAME = f"{REPO}:Q4_K_M"
LABEL = "model-GGUF:Q4_K_M"  # of a progress bar
CONTENT = np.random.default_rng(0).bytes(3_000_000)
SHARDS = [f"model-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
BESIDE = (
    "MTP/m-Q8_0-MTP.gguf",
    "mtp-m-Q8_0.gguf",
    "m-EAGLE3-Q8_0.gguf",
    "m_dflash-Q4_K_M.gguf",
    "adapters/m-F16.gguf",
    "m-lora-F16.gguf",
    "ggml-adapter-model-Q8_0.gguf",
)


class Shown:
    """A `Progress` that records its calls."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int, int]] = []
        self.done = 0
        self.notes: list[str] = []
        self.complete: list[str] = []

    def start(self, what: str, total: int, done: int) -> None:
        self.started.append((what, total, done))
        self.done = done

    def check(self, what: str, total: int) -> None:
        self.start(f"{what}, checking", total, 0)

    def checked(self, what: str) -> None:
        self.complete.append(what)

    def advance(self, n_bytes: int) -> None:
        self.done += n_bytes

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """The progress of downloads that do not wait between attempts."""
    monkeypatch.setattr(cache.time, "sleep", lambda _: None)
    return Shown()


@pytest.fixture(autouse=True)
def repository(hub: Hub) -> Repository:
    """A repository with one model in one file and one in three."""
    shards = {name: CONTENT[i * 1000 : (i + 1) * 1000] for i, name in enumerate(SHARDS)}
    return hub.add(REPO, {FILE: CONTENT, "README.md": b"read me"} | shards)


def name(text: str = NAME) -> HubName:
    parsed = parse(text)
    assert isinstance(parsed, HubName)
    return parsed


def pulled(shown: Shown, text: str = NAME) -> Path:
    return cache.pull(cache.look_up(name(text), shown), shown)


def assert_nothing_registered(text: str = NAME) -> None:
    assert cache.find(name(text)) is None
    assert cache.models() == []
    assert not list(cache.folder(REPO).glob("snapshots/*/*"))
    assert not list(cache.folder(REPO).glob("refs/*"))


def partial() -> Path:
    return cache.folder(REPO) / "blobs" / f"{hashlib.sha256(CONTENT).hexdigest()}.incomplete"


def test_a_fresh_model_is_where_every_other_program_looks(shown: Shown) -> None:
    path = pulled(shown)
    assert path.read_bytes() == CONTENT
    assert path == cache.find(name())
    assert huggingface_hub.hf_hub_download(REPO, FILE, local_files_only=True) == str(path)
    assert huggingface_hub.hf_hub_download(REPO, FILE) == str(path)
    scanned = huggingface_hub.scan_cache_dir(cache_dir())
    assert not scanned.warnings
    assert [repo.repo_id for repo in scanned.repos] == [REPO]
    assert not scanned.incomplete_files
    assert shown.started == [(LABEL, len(CONTENT), 0), (f"{LABEL}, checking", len(CONTENT), 0)]
    assert shown.done == len(CONTENT)
    assert shown.complete == [LABEL]


def test_what_the_client_of_the_hub_fetched_is_found() -> None:
    path = Path(huggingface_hub.hf_hub_download(REPO, FILE))
    assert cache.find(name()) == path
    assert [(model.repo, model.file, model.n_bytes) for model in cache.models()] == [(REPO, FILE, len(CONTENT))]


def test_a_split_model_comes_with_all_its_shards(repository: Repository, shown: Shown) -> None:
    path = pulled(shown, f"{REPO}:Q8_0")
    assert path.name == SHARDS[0]
    assert [(path.parent / shard).read_bytes() for shard in SHARDS] == [repository.files[shard] for shard in SHARDS]
    assert cache.find(name(f"{REPO}/{SHARDS[1]}")) == path


def test_a_split_model_is_invisible_until_its_last_shard_is_there(
    hub: Hub, repository: Repository, shown: Shown
) -> None:
    model = cache.look_up(name(f"{REPO}:Q8_0"), shown)
    hub.faults = [Fault(hashlib.sha256(repository.files[SHARDS[2]]).hexdigest(), status=404) for _ in range(3)]
    with pytest.raises(HubError):
        cache.pull(model, shown)
    assert_nothing_registered(f"{REPO}:Q8_0")
    assert cache.missing_bytes(model) == 1000
    hub.requests.clear()
    assert cache.pull(model, shown).is_file()
    assert len(hub.ranges()) == 1


@pytest.mark.slow
def test_a_model_that_lost_a_shard_is_not_cached_and_comes_back(repository: Repository, shown: Shown) -> None:
    path = pulled(shown, f"{REPO}:Q8_0")
    lost = path.with_name(SHARDS[1])
    lost.resolve().unlink()
    assert cache.find(name(f"{REPO}:Q8_0")) is None
    assert pulled(shown, f"{REPO}:Q8_0") == path
    assert lost.read_bytes() == repository.files[SHARDS[1]]


@pytest.mark.parametrize("fault", [Fault("/cdn/", cut=1_500_000), Fault("/cdn/", cut=0)])
def test_a_lost_connection_is_taken_up_where_it_broke(hub: Hub, shown: Shown, fault: Fault) -> None:
    hub.faults = [fault]
    assert pulled(shown).read_bytes() == CONTENT
    first, second = hub.ranges()
    assert first is None
    assert (second is None) == (fault.cut == 0)
    assert len(shown.notes) == 1
    assert "trying again in" in shown.notes[0]


@pytest.mark.slow
def test_an_interrupted_download_goes_on_in_the_next_process(hub: Hub, shown: Shown) -> None:
    hub.faults = [Fault("/cdn/", cut=2_000_000, hold=True)]
    command = [sys.executable, "-m", "specrun", "pull", NAME]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    assert hub.held.wait(30)
    while not partial().exists() or partial().stat().st_size < 1_500_000:
        assert process.poll() is None
    process.kill()
    process.wait()
    assert_nothing_registered()
    n_bytes = partial().stat().st_size
    hub.requests.clear()
    assert pulled(shown).read_bytes() == CONTENT
    assert hub.ranges() == [f"bytes={n_bytes}-"]
    assert shown.started[0] == (LABEL, len(CONTENT), n_bytes)


def test_a_server_that_ignores_ranges_sends_everything_again(hub: Hub, shown: Shown) -> None:
    hub.faults = [Fault("/cdn/", cut=1_500_000), Fault("/cdn/", ignore_range=True)]
    assert pulled(shown).read_bytes() == CONTENT


def begun(n_bytes: int = 1_500_000) -> None:
    """The first bytes are here from an interrupted download."""
    partial().parent.mkdir(parents=True)
    partial().write_bytes(CONTENT[:n_bytes])


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
@pytest.mark.parametrize("n_refused", [1, 2])
def test_a_redirect_that_went_stale_is_asked_for_again(hub: Hub, shown: Shown, status: int, n_refused: int) -> None:
    begun()
    hub.faults = [Fault("/cdn/", status=status) for _ in range(n_refused)]
    assert pulled(shown).read_bytes() == CONTENT
    assert hub.ranges() == ["bytes=1500000-"] * min(n_refused + 1, 2) + [None] * (n_refused - 1)
    said = f"localhost, to which {hub.url} sends downloads, answers {status}"
    assert shown.notes[:n_refused] == [f"{said}; trying again in {wait} s" for wait in (1, 2)[:n_refused]]
    assert sum(path.startswith(f"/{REPO}/resolve/") for _, path, _ in hub.requests) == n_refused + 1


@pytest.mark.parametrize("status", [403, 404, 416])
def test_a_range_that_is_always_refused_is_dropped_and_it_says_so(hub: Hub, shown: Shown, status: int) -> None:
    begun()
    hub.faults = [Fault("/cdn/", status=status, only_ranges=True) for _ in range(99)]
    assert pulled(shown).read_bytes() == CONTENT
    assert hub.ranges()[-1] is None
    assert len(hub.ranges()) == (2 if status == 416 else 3)
    assert shown.notes[-1] == f"{hub.url} does not continue {FILE}; it comes from 0 bytes on"
    assert shown.started[0] == (LABEL, len(CONTENT), 1_500_000)


@pytest.mark.parametrize("status", [403, 404, 416])
def test_who_always_refuses_loses_nothing_and_names_what_is_here(hub: Hub, shown: Shown, status: int) -> None:
    begun()
    hub.faults = [Fault("/cdn/", status=status) for _ in range(99)]
    with pytest.raises(HubError, match=rf"{status}.*\(the next pull continues at 2 MB, which are in {partial()}\)"):
        pulled(shown)
    assert partial().read_bytes() == CONTENT[:1_500_000]
    hub.faults = []
    assert pulled(shown).read_bytes() == CONTENT
    assert hub.ranges()[-1] == "bytes=1500000-"


def test_a_page_of_a_proxy_is_not_taken_for_the_model(hub: Hub, shown: Shown) -> None:
    begun()
    for path in ("/cdn/", "/resolve/"):
        hub.faults = [Fault(path, page=b"<html>Please log in</html>")]
        with pytest.raises(HubError, match=rf"sends 26 bytes instead of {FILE}, which has 3000000; check the proxy"):
            pulled(shown)
    assert pulled(shown).read_bytes() == CONTENT
    assert hub.ranges()[-1] == "bytes=1500000-"


@pytest.mark.parametrize("begin", [None, 0, 1_000_000, 1_500_001])
@pytest.mark.parametrize("ok", [False, True])
def test_where_a_server_really_continues_counts(hub: Hub, shown: Shown, begin: int | None, ok: bool) -> None:
    begun()
    hub.faults = [Fault("/cdn/", begin=begin, ok=ok)]
    assert pulled(shown).read_bytes() == CONTENT
    assert hub.ranges() == ["bytes=1500000-"] + [None] * (begin == 1_500_001)


@pytest.mark.parametrize("n_here", [0, 1_500_000])
def test_a_proxy_that_compresses_is_understood(hub: Hub, shown: Shown, n_here: int) -> None:
    begun(n_here)
    hub.faults = [Fault("/cdn/", zipped=True)]
    assert pulled(shown).read_bytes() == CONTENT


def test_a_host_of_files_that_cannot_be_reached_is_named(hub: Hub, shown: Shown) -> None:
    begun()
    blocked = {"Location": "http://localhost:9/cdn/x?Signature=secret"}
    hub.faults = [Fault("/resolve/", status=302, headers=blocked) for _ in range(99)]
    part = rf"no connection to localhost, to which {hub.url} sends downloads \(.*\); check the network, or the proxy"
    with pytest.raises(HubError, match=part) as told:
        pulled(shown)
    assert not isinstance(told.value, NoHubError)
    assert "secret" not in str(told.value)
    assert partial().read_bytes() == CONTENT[:1_500_000]


def test_a_connection_that_stalls_is_taken_up_again(hub: Hub, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    hub.faults = [Fault("/cdn/", cut=1_500_000, hold=True)]
    assert pulled(shown).read_bytes() == CONTENT
    said = f"lost the connection to localhost, to which {hub.url} sends downloads (timed out)"
    assert shown.notes == [f"{said}; trying again in 1 s"]


def test_what_the_hub_itself_refuses_is_not_asked_again(hub: Hub, shown: Shown) -> None:
    hub.faults = [Fault("/resolve/", status=404, headers={"X-Error-Code": "EntryNotFound"})]
    with pytest.raises(HubError, match="no longer has this file"):
        pulled(shown)
    assert not shown.notes


def test_damaged_bytes_are_deleted_and_not_registered(hub: Hub, shown: Shown) -> None:
    hub.faults = [Fault("/cdn/", corrupt=True)]
    with pytest.raises(HubError, match=f"{FILE} arrived damaged .* deleted; fetch it again"):
        pulled(shown)
    assert_nothing_registered()
    assert not partial().exists()
    assert pulled(shown).read_bytes() == CONTENT


def test_a_wrong_beginning_of_an_interrupted_download_is_noticed(shown: Shown) -> None:
    partial().parent.mkdir(parents=True)
    partial().write_bytes(b"x" * 1000)
    with pytest.raises(HubError, match="damaged"):
        pulled(shown)
    assert pulled(shown).read_bytes() == CONTENT


def test_without_a_sha256_the_size_is_checked(repository: Repository, shown: Shown) -> None:
    repository.with_sha256 = False
    assert pulled(shown).read_bytes() == CONTENT
    assert shown.done == 0  # nothing to compare with


def test_a_mirror_that_lists_no_sizes_is_asked_for_each_file(repository: Repository, shown: Shown) -> None:
    repository.with_sizes = False
    assert pulled(shown).read_bytes() == CONTENT
    assert shown.started[1][0] == f"{LABEL}, checking"


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("path", ["/api/", "/resolve/", "/cdn/"])
def test_a_hub_with_a_problem_is_asked_again(hub: Hub, shown: Shown, status: int, path: str) -> None:
    hub.faults = [Fault(path, status=status) for _ in range(2)]
    assert pulled(shown).read_bytes() == CONTENT
    assert [note.rpartition("; ")[2] for note in shown.notes] == ["trying again in 1 s", "trying again in 2 s"]
    assert str(status) in shown.notes[0]


def test_the_hub_says_how_long_to_wait(hub: Hub, shown: Shown) -> None:
    hub.faults = [Fault("/api/", status=429, headers={"Retry-After": "300"})]
    pulled(shown)
    assert shown.notes == [f"{hub.url} answers 429 (too many requests); trying again in 300 s"]


@pytest.mark.parametrize("path", ["/api/", "/cdn/"])
def test_a_hub_that_stays_broken_ends_in_one_line(hub: Hub, shown: Shown, path: str) -> None:
    hub.faults = [Fault(path, status=500) for _ in range(99)]
    with pytest.raises(HubError, match="answers 500") as error:
        pulled(shown)
    assert "\n" not in str(error.value)
    assert_nothing_registered()


def test_nobody_listens(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"no connection to http://127.0.0.1:9 .*; check the network, or HF_ENDPOINT"):
        cache.look_up(name(), shown)
    assert not shown.notes, "it is not tried again"
    with monkeypatch.context() as patch:
        patch.setattr("specrun.catalog.hub.client._look_up", lambda _: pytest.fail("nor for the next model"))
        with pytest.raises(NoHubError, match="no connection"):
            cache.look_up(name(), shown)


def test_a_hub_that_could_not_be_connected_to_is_tried_again_later(
    hub: Hub, repository: Repository, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    del repository
    monkeypatch.setattr("specrun.catalog.hub.client._unreachable", {hub.url: (time.monotonic() - 1, "no network")})
    assert cache.look_up(name(), shown).files


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("org/model-GUFF", "there is no repository org/model-GUFF on .*; check the name"),
        ("Qwen/Qwen2.5-14B-Instruct-GUFF", "did you mean Qwen/Qwen2.5-14B-Instruct-GGUF"),
        (f"{REPO}:Q5_K_M", "has no Q5_K_M model; it has model-Q4_K_M.gguf, model-Q8_0-00001-of-00003.gguf"),
        (f"{REPO}/model-Q4_K_S.gguf", "has no file model-Q4_K_S.gguf; did you mean model-Q4_K_M.gguf"),
    ],
)
def test_what_is_not_there_is_told_with_near_names(shown: Shown, text: str, part: str) -> None:
    with pytest.raises(HubError, match=part):
        cache.look_up(name(text), shown)
    assert not shown.notes


@pytest.fixture
def with_heads(repository: Repository) -> list[str]:
    """What publishers put beside a model: heads and adapters of the same quantization, projectors, calibration data."""
    beside = {name: name.encode() for name in BESIDE}
    repository.files = {"m-UD-Q4_K_XL.gguf": b"xl", "m-UD-Q5_K_XL.gguf": b"5", "m-BF16.gguf": b"bf"} | beside
    return list(beside)


@pytest.mark.slow
def test_what_lies_beside_a_model_is_never_taken_for_it(with_heads: list[str], shown: Shown) -> None:
    for quantization in ("Q8_0", "Q4_K_M", "F16", "MTP"):
        with pytest.raises(HubError) as told:
            cache.look_up(name(f"{REPO}:{quantization}"), shown)
        assert "m-BF16.gguf" in str(told.value)
        assert not any(file in str(told.value) for file in with_heads)
    for text, file in {
        "Q4_K_XL": "m-UD-Q4_K_XL.gguf",
        "ud-q5_k_xl": "m-UD-Q5_K_XL.gguf",
        "bf16": "m-BF16.gguf",
    }.items():
        assert cache.look_up(name(f"{REPO}:{text}"), shown).files[0].name == file
    with pytest.raises(HubError, match=r"can be m-BF16.gguf, m-UD-Q4_K_XL.gguf, m-UD-Q5_K_XL.gguf; name one: org/"):
        cache.look_up(name(REPO), shown)


@pytest.mark.slow
def test_a_head_is_fetched_by_the_name_of_its_file(repository: Repository, with_heads: list[str], shown: Shown) -> None:
    assert [pulled(shown, f"{REPO}/{file}").read_bytes() for file in with_heads] == [f.encode() for f in with_heads]
    assert cache.find(name(f"{REPO}:Q8_0")) is None, "nor is it taken from the cache"
    repository.files = {file: repository.files[file] for file in with_heads}
    with pytest.raises(HubError, match=f"no Q8_0 model; heads and adapters are named by their files, as {REPO}/MTP/m-"):
        pulled(shown, f"{REPO}:Q8_0")
    repository.files["m-BF16.gguf"] = b"bf"
    pulled(shown, f"{REPO}:BF16")
    assert (path := cache.find(name(REPO)))
    assert path.name == "m-BF16.gguf"


def test_several_models_of_one_quantization_are_listed_from_the_cache_too(repository: Repository, shown: Shown) -> None:
    repository.files = {"a-Q4_K_M.gguf": b"a", "b-Q4_K_M.gguf": b"b", "c-Q5_0.gguf": b"c"}
    assert pulled(shown, f"{REPO}/a-Q4_K_M.gguf") == cache.find(name(REPO)) == cache.find(name())
    pulled(shown, f"{REPO}/b-Q4_K_M.gguf")
    pulled(shown, f"{REPO}:Q5_0")
    for text in (REPO, NAME):
        with pytest.raises(UsageError, match=f"{text} can be a-Q4_K_M.gguf, b-Q4_K_M.gguf; name one: {REPO}/a-"):
            cache.find(name(text))
    assert cache.find(name(f"{REPO}:b-q4_k_m"))


@pytest.mark.slow
def test_pasted_addresses_fetch_what_they_show(hub: Hub, shown: Shown) -> None:
    for address in (
        f"hf.co/{NAME}",
        f"hf.co/{REPO}:{FILE}",
        f"{hub.url}/{REPO}/blob/main/{FILE}",
        f"{hub.url}/{REPO}/resolve/{COMMIT}/{FILE}?download=true",
        f"https://huggingface.co/{REPO}?show_file_info={FILE}",
    ):
        model = cache.look_up(name(address), shown)
        assert [file.name for file in model.files] == [FILE]
        assert model.name == address, "by which the user knows it"
        assert model.revision == (COMMIT if COMMIT in address else "main")


def test_a_repository_that_lacks_a_shard(repository: Repository, shown: Shown) -> None:
    del repository.files[SHARDS[1]]
    with pytest.raises(HubError, match=f"lacks {SHARDS[1]}, one of the 3 files"):
        cache.look_up(name(f"{REPO}:Q8_0"), shown)


def test_a_gated_model_says_which_page_to_open(
    hub: Hub, repository: Repository, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.gated = True
    with pytest.raises(HubError, match=f"open {hub.url}/{REPO}, accept its terms, then set HF_TOKEN"):
        pulled(shown)
    hub.token = "secret"
    monkeypatch.setenv("HF_TOKEN", "secret")
    with pytest.raises(HubError, match="then wait for its owners to grant access"):
        pulled(shown)
    assert_nothing_registered()
    repository.gated = False
    hub.requests.clear()
    assert pulled(shown).read_bytes() == CONTENT
    tokens = {path.split("/")[1]: headers.get("authorization") for _, path, headers in hub.requests}
    assert tokens == {"api": "Bearer secret", "org": "Bearer secret", "cdn": None}


def test_a_token_that_the_hub_does_not_know(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(HubError, match="does not know this token; check HF_TOKEN"):
        pulled(shown)


@pytest.mark.parametrize("token", ["hf_ähnlich", "“hf_quoted”", "hf_\udcff"])
def test_a_token_with_characters_that_no_token_has(shown: Shown, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(HubError, match="the token of HF_TOKEN, or of `hf auth login`, has characters") as refused:
        pulled(shown)
    assert token[3:] not in str(refused.value)


def test_a_kept_token_that_is_no_text(shown: Shown, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"hf_\xff")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(path))
    with pytest.raises(HubError, match="has characters that no token has; copy it again"):
        pulled(shown)


def test_a_private_model_needs_a_token(
    hub: Hub, repository: Repository, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.private = True
    with pytest.raises(HubError, match="a private one needs HF_TOKEN"):
        pulled(shown)
    hub.token = "secret"
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert pulled(shown).read_bytes() == CONTENT


def test_offline(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for text in ("org/one-GGUF", "org/two-GGUF"):
        with pytest.raises(NoHubError, match=f"{text} is not in the cache, and HF_HUB_OFFLINE is set"):
            pulled(shown, text)
    assert not shown.notes


def test_the_disk_is_looked_at_before_anything_is_fetched(
    hub: Hub, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cache.look_up(name(), shown)
    assert cache.check_disk([model]) > 0
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2_000_000}))
    with pytest.raises(HubError, match=r"too full: 3 MB are needed and 2 MB are free; free some, or set HF_HOME"):
        cache.check_disk([model])
    partial().parent.mkdir(parents=True)
    partial().write_bytes(CONTENT[:1_500_000])
    assert cache.check_disk([model]) == 2_000_000
    assert not hub.ranges()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """A disk of 1.5 MB where the cache will be; call it with other mount options to change them."""
    place = tmp_path / "huggingface"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield lambda options: subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True) and None
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_up(hub: Hub, shown: Shown, small_disk: Callable[[str], None]) -> None:
    with pytest.raises(HubError, match="too full: no space is left; free some"):
        pulled(shown)
    assert_nothing_registered()
    small_disk("size=10m")
    assert pulled(shown).read_bytes() == CONTENT
    assert hub.ranges()[1] is not None


def test_a_read_only_cache(shown: Shown, small_disk: Callable[[str], None]) -> None:
    small_disk("ro")
    with pytest.raises(HubError, match=r"cannot be written: Read-only file system; set HF_HOME to another folder"):
        pulled(shown)
    small_disk("rw,size=10m")
    path = pulled(shown)
    small_disk("ro")
    assert cache.find(name()) == path
    with pytest.raises(HubError, match="Read-only"):
        cache.remove(REPO, path)


def test_a_file_where_the_cache_should_be(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "huggingface").mkdir()
    (tmp_path / "huggingface" / "hub").write_text("")
    with pytest.raises(HubError, match=r"cannot be written: .*; set HF_HOME to another folder"):
        pulled(shown)


@pytest.mark.slow
def test_two_processes_that_fetch_the_same_model_share_one_download(
    hub: Hub,
) -> None:
    hub.faults = [Fault("/cdn/", cut=1_000_000, hold=True)]
    command = [sys.executable, "-m", "specrun", "pull", NAME]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, text=True)
        for _ in range(2)
    ]
    assert hub.held.wait(30)
    wait_until(lambda: sum(path.startswith("/api/") for _, path, _ in hub.requests) >= 2, "both processes")
    assert processes[0].poll() is None
    hub.go_on.set()
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0] == f"{cache.find(name())}\n"
    assert len(hub.ranges()) == 1


def test_a_pinned_revision(shown: Shown) -> None:
    model = cache.look_up(HubName("x", REPO, COMMIT, FILE), shown)
    assert (model.revision, model.commit, model.licence) == (COMMIT, COMMIT, "apache-2.0")
    assert cache.pull(model, shown).parent.name == COMMIT
    assert not (cache.folder(REPO) / "refs").exists()


def test_a_pinned_revision_that_is_gone_gives_way_to_the_newest(shown: Shown) -> None:
    model = cache.look_up(HubName("x", REPO, "f" * 40, FILE), shown)
    assert (model.revision, model.commit) == ("main", COMMIT)
    assert shown.notes == [f"{REPO} has no revision {'f' * 40} any more; taking its newest"]


def test_a_file_that_the_hub_sends_to_its_own_client_only(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "MAX_HTTP_DOWNLOAD_SIZE", 1000)
    with pytest.raises(HubError, match=f"run `hf download {REPO} {FILE}`, then this again"):
        pulled(shown)


@pytest.mark.slow
def test_removing_frees_the_blobs_and_leaves_the_other_models(shown: Shown) -> None:
    path = pulled(shown)
    split = pulled(shown, f"{REPO}:Q8_0")
    assert cache.remove(REPO, split) == 3000
    assert cache.find(name(f"{REPO}:Q8_0")) is None
    assert path.read_bytes() == CONTENT
    assert cache.remove(REPO, path) == len(CONTENT)
    assert not cache.folder(REPO).exists()


def test_look_up_reads_what_the_hub_knows_of_the_file(repository: Repository, shown: Shown) -> None:
    repository.gguf = {"architecture": "qwen2", "context_length": 32768, "total": 1}
    model = cache.look_up(name(), shown)
    assert isinstance(model, RemoteModel)
    assert (model.architecture, model.context, model.bytes) == ("qwen2", 32768, len(CONTENT))
