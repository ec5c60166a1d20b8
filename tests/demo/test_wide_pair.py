"""The demonstration's pair: made once, told before, and nothing half-done remains."""

from __future__ import annotations

import shutil
import sys

import pytest

from specrun import demo as wide_pair
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import SpecrunError
from specrun.long_run import Run

pytestmark = pytest.mark.usefixtures("small")


@pytest.mark.slow
def test_it_is_made_once_and_says_before_what_it_takes() -> None:
    notes, shown = list[str](), list[str]()
    target, draft = wide_pair.wide_pair(Run(shown.append, notes.append))
    assert len(notes) == 1
    assert "that are free" in notes[0]
    assert all("of 14 MB" in text for text in shown)
    assert "left" in shown[0] or "nearly" in shown[0]
    times = [path.stat().st_mtime_ns for path in (target, draft)]
    assert wide_pair.wide_pair(Run(shown.append, notes.append)) == (target, draft)
    assert len(notes) == 1
    assert [path.stat().st_mtime_ns for path in (target, draft)] == times
    assert GgufFile.read(target).n_layers == 9


@pytest.mark.slow
def test_a_pair_of_another_version_is_deleted() -> None:
    wide_pair.folder().mkdir(parents=True)
    (wide_pair.folder() / "target-of-another.gguf").write_text("old")
    made = wide_pair.wide_pair(Run())
    assert sorted(wide_pair.folder().iterdir()) == sorted(made)


@pytest.mark.slow
def test_a_disk_without_room_is_told_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=10_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    notes = list[str]()
    with pytest.raises(SpecrunError, match=r"10 MB free; the pair takes 14 MB, and 100 MB have to stay free; make"):
        wide_pair.wide_pair(Run(note=notes.append))
    assert not notes
    assert list(wide_pair.folder().iterdir()) == []


def test_a_folder_that_cannot_be_is_an_error_with_advice() -> None:
    wide_pair.folder().parent.write_text("no folder")
    with pytest.raises(SpecrunError, match="SPECRUN_CACHE_DIR"):
        wide_pair.wide_pair(Run())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit of files' sizes")
def test_a_disk_that_fills_while_it_is_written_leaves_nothing() -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, limits[1]))
    try:
        with pytest.raises(SpecrunError, match=r"cannot be written: (File too large|no more could be written)"):
            wide_pair.wide_pair(Run())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(wide_pair.folder().iterdir()) == []


@pytest.mark.slow
def test_an_interrupted_pair_leaves_nothing() -> None:
    def stop(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wide_pair.wide_pair(Run(stop))
    assert list(wide_pair.folder().iterdir()) == []


@pytest.mark.slow
def test_remove_says_how_much_it_freed() -> None:
    assert wide_pair.remove() == 0
    made = wide_pair.wide_pair(Run())
    n_bytes = sum(path.stat().st_size for path in made)
    assert wide_pair.remove() == n_bytes
    assert not wide_pair.folder().exists()
