"""Facts are kept for what they depend on, whole or not at all, and no damaged file is believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specrun import kept_facts
from specrun.kept_facts import KeptFact, every, fingerprint, once, path_of, read, recall, remember
from specrun.locations import data_dir

OF = {"model": "abc", "settings": {"threads": 2}}


def test_a_fact_is_found_out_once_for_what_it_depends_on() -> None:
    found = [3, 2, 1]
    assert [once("kind", OF, found.pop, int) for _ in range(2)] == [1, 1]
    assert once("kind", {**OF, "model": "other"}, found.pop, int) == 2
    assert once("other kind", OF, found.pop, int) == 3
    assert len(list(every("kind"))) == 2


def test_its_file_is_json_that_says_what_it_depends_on() -> None:
    path = kept_facts.write("a/kind", OF, {"number": 3})
    assert path == path_of("a/kind", OF) == data_dir() / "a" / "kind" / f"{fingerprint(OF)}.json"
    kept = json.loads(path.read_text())
    assert (kept["of"], kept["value"], kept["version"]) == (OF, {"number": 3}, 1)
    assert list(every("a/kind")) == [KeptFact(path, OF, {"number": 3})] == [read(path)]


@pytest.mark.slow
def test_no_changed_bit_is_believed() -> None:
    path = kept_facts.write("kind", OF, 3)
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        assert recall("kind", OF, int) is None
        assert list(every("kind")) == [path]
    for damaged in (b"", whole[:-1], whole + b" ", b"{}", b"null", b"[" * 100_000):
        path.write_bytes(damaged)
        assert recall("kind", OF, int) is None
    remember("kind", OF, 4)
    assert recall("kind", OF, int) == 4


def test_a_value_of_another_form_is_not_known() -> None:
    remember("kind", OF, {"number": "x"})
    assert recall("kind", OF, lambda value: int(value["number"])) is None


def test_what_nobody_finds_out_by_the_way_is_set_aside_and_said() -> None:
    said: list[str] = []
    assert recall("kind", OF, int, said.append) is None
    path = kept_facts.write("kind", OF, 3)
    path.write_text("{")
    assert recall("kind", OF, int, said.append) is None
    (line,) = said
    assert line.startswith(f"{path} cannot be used (")
    assert line.endswith(f"kept as {path}.damaged")
    assert Path(f"{path}.damaged").read_text() == "{"
    path.mkdir()
    assert recall("kind", OF, int, said.append) is None
    assert said[1].startswith(f"{path} cannot be read: ")


@pytest.mark.parametrize("blocked", ["", "kind"])
def test_without_a_folder_nothing_is_kept_and_nothing_fails(blocked: str) -> None:
    place = data_dir() / blocked
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("a file")
    found = [2, 1]
    assert [once("kind", OF, found.pop, int) for _ in range(2)] == [1, 2]
