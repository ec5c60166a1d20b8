"""The menu of `specrun chat` without a target: what it offers, what it takes, on a real terminal."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.catalog.entries import Entry, catalog, recommended
from specrun.cli.opening import Offer, _chosen, _downloads
from specrun.errors import SpecrunError
from specrun.hardware.fit import Rates
from specrun.loading.local_fit import LocalFits
from tests.conftest import SCRIPT_TEXT, Specrun, SpecrunHere
from tests.hardware.test_placement import GB, gpu
from tests.other_programs import in_ollama


def downloads(fits: LocalFits, here: set[str] = frozenset()) -> dict[str, str]:  # type: ignore[assignment]
    """What the menu says of each model that it offers to download."""
    return {offer.name: offer.about.rpartition(", ")[0] for offer in _downloads(catalog().values(), fits, here)}


@pytest.fixture(autouse=True)
def much_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 100 GB."""
    monkeypatch.setattr("specrun.catalog.cache.free_bytes", lambda: 100 * GB)


def test_a_small_model_the_best_and_the_recommended_one_are_offered() -> None:
    best = recommended(catalog())
    assert isinstance(best, Entry)
    offered = downloads(LocalFits(catalog(), (gpu(24 * GB),), 64 * GB, Rates()))
    assert list(offered.values()) == [
        "small and quick",
        "the best that fits",
        f"recommended, draft {best.drafts[0]}",
    ]
    assert list(offered)[-1] == best.alias
    assert best.alias not in downloads(LocalFits(catalog(), (gpu(24 * GB),), 64 * GB, Rates()), {best.alias})


def test_on_a_small_machine_nothing_is_called_best_that_does_not_fit() -> None:
    fits = LocalFits(catalog(), (), 6 * GB, Rates())
    for name, about in downloads(fits).items():
        found = fits.of(catalog()[name], None)
        assert found
        assert found.fits == "ram" or "recommended" in about


def test_without_a_terminal_the_recommended_model_is_named(here: SpecrunHere) -> None:
    best = recommended(catalog())
    assert best
    here("chat").assert_fails(2, f"--target {best.alias}")


def test_numbers_names_and_paths_are_taken(script: Path) -> None:
    in_ollama(Path(os.environ["OLLAMA_MODELS"]), "registry.ollama.ai/library/mine/latest", script)
    offers = [Offer("a", 1, ""), Offer("b", 2, "")]
    answers = ["2", "ollama:mine", "mine:latest", "qwen-14b", "org/repo-GGUF:Q8_0", str(script), embedded.NAME]
    assert [_chosen(answer, offers) for answer in answers] == ["b", *answers[1:]]
    for answer, why in {
        "3": "from 1 to 2",
        "0": "from 1 to 2",
        "nothing": "no model is called",
        "ollama:nothing": "`ollama pull nothing`",
        str(script.parent): "is no file",
        f"{script}-not.gguf": "is no file",
    }.items():
        with pytest.raises(SpecrunError, match=re.escape(why)):
            _chosen(answer, offers)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_q_leaves_the_menu(specrun: Specrun) -> None:
    import pexpect

    chat = specrun.on_terminal("chat")
    chat.expect_exact("q to leave")
    chat.sendline("q")
    chat.expect(pexpect.EOF)
    chat.close()
    assert chat.exitstatus == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_a_model_of_ollama_s_answers_where_it_lies(specrun: Specrun, script: Path) -> None:
    import pexpect

    blob = in_ollama(Path(os.environ["OLLAMA_MODELS"]), "registry.ollama.ai/library/mine/latest", script)
    before = blob.read_bytes(), blob.stat()
    chat = specrun.on_terminal("chat", "--speculate", "off")
    chat.expect_exact("on this machine")
    chat.expect_exact("ollama:mine:latest")
    chat.expect_exact("Enter for 1")
    chat.sendline("99")
    chat.expect_exact("99 is none of the numbers from 1 to")
    chat.sendline("")
    chat.expect_exact("a message, or /help")
    chat.send("one\r")
    chat.expect_exact(SCRIPT_TEXT)
    chat.expect_exact("a message, or /help")
    chat.send("\x04")
    chat.expect(pexpect.EOF)
    after = blob.read_bytes(), blob.stat()
    assert (after[0], after[1].st_mtime_ns) == (before[0], before[1].st_mtime_ns)
    assert {path.parent.name for path in blob.parents[1].rglob("*") if path.is_file()} == {"blobs", "mine"}
