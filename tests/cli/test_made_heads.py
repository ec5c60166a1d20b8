"""What commands make of a head that `scripts/make_head` left in the data folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specrun.catalog import embedded, made
from tests.conftest import SpecrunHere
from tests.scripts.make_head.orders import files, registered_head

TARGET = str(embedded.TARGET)


@pytest.mark.slow
def test_a_head_is_shown_and_used_where_named(here: SpecrunHere) -> None:
    head = registered_head()
    assert "EAGLE-3, at random" in here("models", "info", TARGET).stdout
    assert json.loads(here("models", "info", TARGET, "--json").stdout)["made_head"]["path"] == str(head)
    generate = ("generate", "def read(path):\n", "--raw", "-n", "24", "--temp", "0.8", "--seed", "1", "--json")
    plain = json.loads(here(*generate, "--target", TARGET, "--draft", "none").stdout)
    drafted = json.loads(here(*generate, "--target", TARGET, "--draft", str(head), "--speculate", "tree").stdout)
    assert drafted["token_ids"] == plain["token_ids"]


@pytest.mark.slow
def test_tune_compares_it_with_the_target_alone() -> None:
    from specrun.catalog.resolve import drafts_here

    head = registered_head()
    assert drafts_here(TARGET) == ["none", str(head)]
    assert drafts_here(None) == [str(head), str(embedded.DRAFT)]


@pytest.mark.usefixtures("served")
def test_it_is_deleted_with_its_target(here: SpecrunHere) -> None:
    here("pull", "qwen-14b", "--yes")
    target = Path(here("models", "path", "qwen-14b").stdout.strip())
    path = made.home(target) / "head-eagle3.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"head")
    made.register(target, made.MadeDraft(path, "at random"), "head")
    made.unfinished_head(target).mkdir()
    here("models", "rm", "qwen-14b", "--yes")
    assert files() == []
