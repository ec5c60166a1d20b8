"""Models that are named but not on this machine: asked for on a terminal, told in a pipe, fetched with --pull."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from specrun.catalog import cache
from specrun.catalog.entries import catalog
from specrun.catalog.file_names import shards
from tests.conftest import SCRIPT_TEXT, Specrun, SpecrunHere
from tests.hub import Fault, Hub
from tests.waiting import wait_until

PAIR, MISSING, HUB = 4, 7, 8  # exit codes, see specrun.errors
pytestmark = pytest.mark.usefixtures("served")

PAIR_OPTIONS = ("--target", "qwen-14b", "--draft", "qwen-0.5b")


def has_most_of_a_shard(blobs: Path) -> bool:
    """Whether the bytes that come before the connection is cut have been written."""
    return any(partial.stat().st_size > 500_000 for partial in blobs.glob("*.incomplete"))


def test_a_chat_from_an_empty_cache_on_a_terminal(specrun: Specrun) -> None:
    terminal = specrun.on_terminal("chat", *PAIR_OPTIONS)
    for part in ("qwen-14b", "Qwen/Qwen2.5-14B-Instruct-GGUF, 3 files", "MB", "apache-2.0", "qwen-0.5b", "MB"):
        terminal.expect_exact(part)
    terminal.expect(r"\[Y/n\]: ")
    terminal.sendline("y")
    terminal.expect_exact("a message, or /help")  # the note before it may be wrapped anywhere
    terminal.send("one\r")
    terminal.expect(SCRIPT_TEXT)
    terminal.expect("> ")
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0


def test_a_chat_that_nobody_agrees_to_ends(specrun: Specrun, served: Hub) -> None:
    terminal = specrun.on_terminal("chat", *PAIR_OPTIONS)
    terminal.expect(r"\[Y/n\]: ")
    terminal.sendline("n")
    terminal.expect("are not on this machine")
    terminal.wait()
    assert terminal.exitstatus == MISSING
    assert not served.ranges()


def test_an_interrupted_chat_goes_on_where_it_stopped(specrun: Specrun, served: Hub) -> None:
    served.faults = [Fault("/cdn/", cut=600_000, hold=True)]
    terminal = specrun.on_terminal("chat", *PAIR_OPTIONS, "--yes")
    assert served.held.wait(60)
    blobs = cache.folder(catalog()["qwen-14b"].repo) / "blobs"
    wait_until(lambda: has_most_of_a_shard(blobs), "a partial download")
    terminal.sendintr()
    terminal.expect_exact("the next pull continues")
    terminal.wait()
    assert terminal.exitstatus == 130
    served.go_on.set()
    served.requests.clear()
    terminal = specrun.on_terminal("chat", *PAIR_OPTIONS, "--yes")
    terminal.expect_exact("a message, or /help")  # the note before it may be wrapped anywhere
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert served.ranges()[0] is not None


def test_a_pipe_says_which_command_to_run(here: SpecrunHere, served: Hub) -> None:
    result = here("chat", *PAIR_OPTIONS, stdin="one\n")
    result.assert_fails(MISSING, "qwen-14b and qwen-0.5b are not on this machine", "`specrun pull qwen-14b qwen-0.5b`")
    here("generate", "x", "-m", "qwen-14b:Q8_0").assert_fails(MISSING, "`specrun pull qwen-14b:Q8_0`, or add --pull")
    here("bench", "-m", "org/repo").assert_fails(MISSING, "`specrun pull org/repo`")
    assert not served.requests


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--pull", "--yes", "-y"])
def test_a_pipe_that_may_pull(here: SpecrunHere, option: str) -> None:
    result = here("chat", *PAIR_OPTIONS, option, stdin="one\n")
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n\n")
    assert ": complete" in result.stderr
    again = here("generate", "x", *PAIR_OPTIONS)
    assert (again.code, again.stdout, again.stderr) == (0, f"{SCRIPT_TEXT}\n", "")


def test_a_download_that_was_killed_in_a_pipe_goes_on(specrun: Specrun, served: Hub) -> None:
    served.faults = [Fault("/cdn/", cut=600_000, hold=True)]
    process = specrun.start("chat", *PAIR_OPTIONS, "--pull")
    assert served.held.wait(60)
    blobs = cache.folder(catalog()["qwen-14b"].repo) / "blobs"
    wait_until(lambda: has_most_of_a_shard(blobs), "a partial download")
    process.send_signal(signal.SIGTERM)
    process.communicate()
    served.go_on.set()
    served.requests.clear()
    result = specrun("chat", *PAIR_OPTIONS, "--pull", stdin="one\n")
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n\n")
    assert "continuing at" in result.stderr
    assert served.ranges()[0] is not None


@pytest.mark.slow
def test_a_target_alone_finds_its_draft(here: SpecrunHere) -> None:
    result = here("chat", "--target", "qwen-14b", "--pull", stdin="one\n")
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n\n")
    assert "draft: qwen-0.5b, recommended for qwen-14b" in result.stderr
    again = here("generate", "x", "-m", "qwen-14b")
    assert again.stderr == "draft: qwen-0.5b, recommended for qwen-14b (--draft none does without)\n"


def test_a_target_alone_in_a_pipe_does_without_a_draft_that_is_not_here(here: SpecrunHere) -> None:
    here("pull", "qwen-14b")
    result = here("generate", "x", "-m", "qwen-14b")
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n")
    assert "`specrun pull qwen-0.5b`" in result.stderr


def test_a_target_alone_on_a_terminal_asks_for_its_draft(here: SpecrunHere, specrun: Specrun) -> None:
    here("pull", "qwen-14b")
    terminal = specrun.on_terminal("generate", "x", "-m", "qwen-14b")
    terminal.expect_exact("qwen-0.5b")
    terminal.expect(r"\[Y/n\]: ")
    terminal.sendline("n")
    terminal.expect(SCRIPT_TEXT)
    terminal.wait()
    assert terminal.exitstatus == 0


@pytest.mark.parametrize("options", [("--draft", "none"), ("--speculate", "off"), ("--budget", "1")])
def test_no_draft_is_fetched_where_none_is_wanted(here: SpecrunHere, served: Hub, options: tuple[str, ...]) -> None:
    result = here("generate", "x", "-m", "qwen-14b", "--pull", *options)
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n")
    assert "recommended" not in result.stderr
    assert not any("0.5B" in path for _, path, _ in served.requests)


def test_reversed_roles_are_refused_before_anything_is_fetched(here: SpecrunHere, served: Hub) -> None:
    result = here("generate", "x", "--target", "qwen-0.5b", "--draft", "qwen-14b", "--pull")
    result.assert_fails(PAIR, "bigger than the target", "swap --target and --draft")
    assert not served.ranges()


def test_another_family_is_refused_before_anything_is_fetched(here: SpecrunHere, served: Hub) -> None:
    result = here("generate", "x", "--target", "qwen-14b", "--draft", "llama-1b", "--pull")
    result.assert_fails(PAIR, "llama-1b has another tokenizer than qwen-14b", "specrun models pairs qwen-14b")
    assert not served.ranges()


def test_offline_with_and_without_the_models(specrun: Specrun, here: SpecrunHere) -> None:
    result = specrun("generate", "x", *PAIR_OPTIONS, "--pull", HF_HUB_OFFLINE="1")
    result.assert_fails(HUB, "qwen-14b is not in the cache", "HF_HUB_OFFLINE is set; unset it")
    here("pull", "qwen-14b", "qwen-0.5b")
    result = specrun("generate", "x", *PAIR_OPTIONS, HF_HUB_OFFLINE="1")
    assert (result.code, result.stdout, result.stderr) == (0, f"{SCRIPT_TEXT}\n", "")


@pytest.mark.slow
def test_a_cached_model_that_lost_a_shard_is_missing(here: SpecrunHere) -> None:
    here("pull", "qwen-14b", "qwen-0.5b")
    path = Path(here("models", "path", "qwen-14b").stdout.strip())
    path.with_name(shards(path.name)[2]).unlink()
    here("generate", "x", *PAIR_OPTIONS).assert_fails(MISSING, "specrun pull qwen-14b")
    assert here("generate", "x", *PAIR_OPTIONS, "--pull").stdout == f"{SCRIPT_TEXT}\n"


def test_an_alias_from_the_environment(specrun: Specrun) -> None:
    result = specrun("generate", "x", SPECRUN_TARGET="qwen-14b")
    result.assert_fails(MISSING, "specrun pull qwen-14b")


@pytest.mark.slow
def test_the_command_line_imports_the_hub_only_when_it_needs_it() -> None:
    code = "import sys, specrun.cli.app; print({'huggingface_hub', 'gguf', 'llama_cpp', 'numpy'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
