"""`specrun models make-draft` as a user runs it, with the real quantizer, and what other commands make of its draft."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import psutil
import pytest

from specrun.catalog import made
from specrun.catalog.gguf_file import GgufFile
from tests.conftest import Result, Specrun, SpecrunHere
from tests.models import edited, random_llama, random_mamba
from tests.waiting import TIMEOUT_S, wait_until

OTHER, USAGE, MODEL_FILE, PAIR, MISSING, INTERRUPTED = 1, 2, 3, 4, 7, 130  # exit codes, see specrun.errors
MAKE = ("models", "make-draft")
ONE = ("--types", "q4_0", "--keep-layers", "0.5")
PROMPT = "def read_config(path):\n"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of this module's own."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def run(data: Path) -> Result:
    """A draft of the embedded target."""
    result = Specrun()(
        *MAKE, "--types", "q2_k,q4_0,q8_0", "--keep-layers", "1,0.5", "--json", SPECRUN_DATA_DIR=str(data)
    )
    assert result.code == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def found(run: Result) -> dict[str, Any]:
    return json.loads(run.stdout)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return random_llama(tmp_path / "target.gguf", n_embd=256, n_layer=4)


def drafts(folder: Path | None = None) -> list[Path]:
    """All files of made drafts, unfinished ones among them."""
    return sorted((folder or Path(os.environ["SPECRUN_DATA_DIR"])).glob("drafts/**/*.*"))


def test_every_candidate_is_measured_and_the_best_is_kept(found: dict[str, Any], data: Path, demo_target: Path) -> None:
    assert [entry["name"] for entry in found["candidates"]] == [
        "q2_k",
        "q2_k, 4 of 8 layers",
        "q4_0",
        "q4_0, 4 of 8 layers",
        "q8_0",
        "q8_0, 4 of 8 layers",
    ]
    assert "100% of the target's size" in found["candidates"][4]["skipped"]
    measured = [entry for entry in found["candidates"] if "skipped" not in entry]
    assert len(measured) == 5
    for entry in measured:
        assert 0 < entry["agreement"] < 1
        assert 0 < entry["overlap"] < 1
        assert entry["ms"] > 0
        assert entry["bytes"] < found["target"]["bytes"]
    by_name = {entry["name"]: entry for entry in measured}
    for name in ("q2_k", "q4_0"):
        assert by_name[name]["agreement"] > by_name[f"{name}, 4 of 8 layers"]["agreement"]
    best = {name: value for name, value in found["draft"].items() if name != "path"}
    path = Path(found["draft"]["path"])
    # Two may have the same speedup as it is printed; of these the one that is the faster before rounding is kept.
    highest = max(entry["expected_speedup"] for entry in measured)
    assert best in [entry for entry in measured if entry["expected_speedup"] == highest]
    assert [file for file in drafts(data) if file.suffix == ".gguf"] == [path]
    assert GgufFile.read(path).n_layers == best["layers"]
    assert found["target"]["path"] == str(demo_target)
    assert found["usual_draft"]["agreement"] > 0.4


def test_what_it_says(run: Result) -> None:
    lines = run.stderr.splitlines()
    assert lines[0].startswith("drafts of target.gguf are made and compared with it, 5 in all; first it writes texts")
    assert "target.gguf is Q8_0 already; drafts made from its F16 file would be better" in lines
    assert any(line.startswith("kept as ") for line in lines)
    assert lines[-1].startswith("`specrun tune` ")
    assert "\x1b" not in run.stderr


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_it_drafts_without_draft_and_the_text_is_the_same(
    here: SpecrunHere, data: Path, demo_target: Path, temperature: str
) -> None:
    arguments = ["generate", PROMPT, "-n", "48", "--temp", temperature, "--seed", "3", "--json"]
    off = json.loads(here(*arguments, "--speculate", "off").stdout)
    for target in ([], ["--target", demo_target]):
        with_it = here(*arguments, *target, "--speculate", "tree", SPECRUN_DATA_DIR=str(data))
        assert json.loads(with_it.stdout)["token_ids"] == off["token_ids"]
        assert "draft: made from" in with_it.stderr
    without = here(*arguments, "--draft", "none", SPECRUN_DATA_DIR=str(data))
    assert "made from" not in without.stderr


@pytest.mark.usefixtures("run")
def test_it_is_a_pair(here: SpecrunHere, data: Path, demo_target: Path, found: dict[str, Any]) -> None:
    info = here("models", "info", demo_target, SPECRUN_DATA_DIR=str(data)).stdout
    assert "made draft" in info
    assert Path(found["draft"]["path"]).name in info


def test_made_used_and_forgotten(here: SpecrunHere, target: Path) -> None:
    result = here(*MAKE, target, *ONE)
    assert result.code == 0, result.stderr
    assert "plain decoding" in result.stdout
    assert "q4_0, 2 of 4 layers" in result.stdout
    assert result.stdout.splitlines()[-1].rstrip().endswith("kept")
    (path, _) = drafts()
    assert (path.name, GgufFile.read(path).n_layers) == ("draft-q4_0-2of4.gguf", 2)
    assert f"--target {target}" in result.stderr
    assert "q4_0, 2 of 4 layers" in here("generate", "x", "-m", target, "-n", "4").stderr
    gone = here(*MAKE, target, "--forget")
    assert (gone.code, gone.stdout) == (0, "")
    assert "free again" in gone.stderr
    assert drafts() == []
    assert "made from" not in here("generate", "x", "-m", target, "-n", "4").stderr
    here(*MAKE, target, "--forget").assert_fails(USAGE, "no draft was made", "make-draft")


@pytest.mark.long
def test_again_replaces_the_one_before(here: SpecrunHere, target: Path) -> None:
    here(*MAKE, target, *ONE)
    here(*MAKE, target, "--types", "q5_0", "--keep-layers", "1")
    assert [path.name for path in drafts()] == ["draft-q5_0-4of4.gguf", "draft.json"]


@pytest.mark.long
def test_output(here: SpecrunHere, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert here(*MAKE, target, *ONE, "--output", "mine.gguf").code == 0
    assert [path.name for path in drafts()] == ["draft.json"]
    assert made.find(target) == made.MadeDraft(tmp_path / "mine.gguf", "q4_0, 2 of 4 layers")
    assert here(*MAKE, target, *ONE, "--output", "mine.gguf").code == 0, "its own may be replaced"
    here(*MAKE, target, *ONE, "--output", target).assert_fails(USAGE, "exists already")
    here(*MAKE, target, *ONE, "--output", tmp_path).assert_fails(USAGE, "is a folder")
    here(*MAKE, target, *ONE, "--output", "no/mine.gguf").assert_fails(USAGE, "does not exist")
    assert "no longer used" in here(*MAKE, target, "--forget").stderr
    assert (tmp_path / "mine.gguf").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_draft_that_is_gone_is_named(here: SpecrunHere, target: Path) -> None:
    here(*MAKE, target, *ONE)
    drafts()[0].unlink()
    result = here("generate", "x", "-m", target, "-n", "4")
    assert result.code == 0
    assert "is gone" in result.stderr


@pytest.mark.long
def test_a_target_of_few_bits_loses_layers_only(here: SpecrunHere, demo_target: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.gguf"
    here(*MAKE, demo_target, "--types", "q2_k", "--keep-layers", "1", "--output", small)
    result = here(*MAKE, small, "--keep-layers", "1,0.5", "--json")
    assert [entry["name"] for entry in json.loads(result.stdout)["candidates"]] == ["4 of 8 layers"]
    assert "small.gguf is Q2_K: its weights were kept, and layers left out" in result.stderr
    here(*MAKE, small, "--keep-layers", "1").assert_fails(OTHER, "clearly smaller", "--keep-layers")


def test_a_candidate_that_cannot_be_run_is_skipped_with_its_reason(
    here: SpecrunHere, target: Path, tmp_path: Path
) -> None:
    layered = edited(tmp_path / "layered.gguf", target, {"llama.attention.head_count_kv": [1, 1, 1, 1]})
    result = here(*MAKE, layered, "--types", "q4_0", "--keep-layers", "1,0.5", "--json")
    whole, half = json.loads(result.stdout)["candidates"]
    assert "agreement" in whole
    assert "head_count_kv" in half["skipped"]
    result = here(*MAKE, layered, "--types", "q4_0", "--keep-layers", "0.5")
    announced, *_, error = result.stderr.splitlines()
    assert (result.code, "1 in all" in announced) == (OTHER, True)
    assert error.startswith("specrun: no draft could")
    assert "head_count_kv" in error
    assert [path.name for path in drafts()] == ["draft-q4_0-4of4.gguf", "draft.json"]


def test_a_full_disk_is_found_before_anything_is_written(
    here: SpecrunHere, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 10**12 - 5, 5))
    here(*MAKE, target, *ONE).assert_fails(OTHER, "too full", "5 bytes are free", "--output")
    assert drafts() == []


def test_a_folder_that_cannot_be_written(here: SpecrunHere, target: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    here(*MAKE, target, *ONE, SPECRUN_DATA_DIR=str(tmp_path / "file")).assert_fails(
        OTHER, "cannot be written", "--output"
    )


@pytest.mark.parametrize("signals", [1, pytest.param(2, marks=pytest.mark.long)])
def test_ctrl_c_leaves_nothing_and_keeps_what_was(specrun: Specrun, target: Path, signals: int) -> None:
    assert specrun(*MAKE, target, *ONE).code == 0
    before = drafts()
    process = specrun.start(*MAKE, target)
    wait_until(lambda: any(path.name.startswith(".unfinished") for path in drafts()), "an unfinished draft")
    for _ in range(signals):
        process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stdout) == (INTERRUPTED, b"")
    assert b"Traceback" not in stderr
    assert b"stopping as soon as the pass that may be running is over\n" in stderr
    assert drafts() == before
    assert not _processes_on(target)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_what_a_killed_run_left_is_swept_up_by_the_next(specrun: Specrun, here: SpecrunHere, target: Path) -> None:
    process = specrun.start(*MAKE, target)
    wait_until(drafts, "an unfinished draft")
    process.kill()
    process.communicate()
    assert drafts()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder = drafts()[0].parent
    (folder / f".unfinished-draft.{dead.pid}-0123abcd").write_text("")
    for left in folder.glob(".unfinished-draft.*"):
        os.utime(left, (0, 0))  # what was written to just now may be another container's
    here(*MAKE, target, *ONE)
    assert [path.name for path in drafts()] == ["draft-q4_0-2of4.gguf", "draft.json"]


def _processes_on(target: Path) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if str(target) in " ".join(_command(process))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--types", "q9_k"], USAGE, "choose among q2_k"),
        (["--keep-layers", "2"], USAGE, "--keep-layers"),
        (["--forget", "--types", "q2_k"], USAGE, "no other option"),
        (["none.gguf"], MODEL_FILE, "none.gguf: no such file"),
        (["none.gguf", "--forget"], MODEL_FILE, "none.gguf: no such file"),
        (["qwen-14b"], MISSING, "specrun pull qwen-14b"),
        (["qwen-41b"], USAGE, "did you mean"),
    ],
)
def test_wrong_arguments_end_in_one_line(here: SpecrunHere, arguments: list[str], code: int, part: str) -> None:
    here(*MAKE, *arguments).assert_fails(code, part)


def test_a_recurrent_target(here: SpecrunHere, tmp_path: Path) -> None:
    file = random_mamba(tmp_path / "mamba.gguf", n_layer=4)
    result = here(*MAKE, file, "--types", "q4_0", "--keep-layers", "0.5")
    assert (result.code, result.stdout) == (PAIR, "")
    assert "has recurrent layers, and no draft can be made" in result.stderr.splitlines()[-1]


@pytest.mark.usefixtures("served")
def test_a_draft_of_a_target_by_name_is_deleted_with_its_target(here: SpecrunHere) -> None:
    here("pull", "qwen-14b", "--yes")
    result = here(*MAKE, "qwen-14b", *ONE)
    assert result.code == 0, result.stderr
    assert "`specrun tune --target qwen-14b`" in result.stderr
    assert "draft: made from qwen-14b" in here("generate", "x", "-m", "qwen-14b", "-n", "2").stderr
    removed = here("models", "rm", "qwen-14b", "--yes")
    assert removed.stderr.count("free again") == 2
    assert drafts() == []


@pytest.mark.long
def test_progress_on_a_terminal(specrun: Specrun, tmp_path: Path) -> None:
    # It is drawn some twelve times a second: this target is large enough that each stage is seen on a fast machine too.
    target = random_llama(tmp_path / "target.gguf", n_embd=512, n_layer=8)
    terminal = specrun.on_terminal(*MAKE, target, *ONE)
    terminal.expect(r"text \d of 8 by the target")
    terminal.expect("1 of 1, q4_0, 4 of 8 layers")
    terminal.expect("plain decoding")
    terminal.expect("kept as ")
    terminal.wait()
    assert terminal.exitstatus == 0
