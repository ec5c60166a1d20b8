"""Documents that scripts make are those that the scripts would make now."""

from __future__ import annotations

import importlib
import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["picture_speeds", "reference", "record_terminal", "model_guide", "bench_headline"])
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    yield importlib.import_module(request.param)
    sys.modules.pop(request.param)


@pytest.mark.parametrize("script", ["picture_speeds"], indirect=True)
def test_the_picture_shows_the_recorded_rows(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["picture_speeds.py", "--folder", str(tmp_path)])
    script.main()
    for path in tmp_path.iterdir():
        kept = ROOT / "docs" / "pictures" / path.name
        assert path.read_text() == kept.read_text(), "run python scripts/picture_speeds.py"
        ElementTree.parse(path)


@pytest.mark.parametrize("script", ["picture_speeds"], indirect=True)
def test_whole_tables_of_the_pair_that_writes_english_are_drawn(script: ModuleType) -> None:
    rows = [
        {"pair": pair, "weights": weights, "place": place, "temperature": temperature, "name": name, "rate": rate}
        for pair, weights, place, temperature, rate in [
            ("real", "q8_0", "ram", 0.0, 4.0),
            ("real", "q8_0", "ram", 0.8, 3.0),
            ("real", "f16", "streamed", 0.0, 5.0),
            ("embedded", "q4_k_m", "ram", 0.0, 6.0),
        ]
        for name in script.BARS
    ]
    half = {**rows[0], "weights": "f16", "name": "specrun tuned, auto"}
    found = script.groups([*rows, half])
    assert [(g.weights, g.place, g.temperature, g.rates[0]) for g in found] == [
        ("f16", "streamed", 0.0, 5.0),
        ("q8_0", "ram", 0.8, 3.0),
        ("q8_0", "ram", 0.0, 4.0),
    ]
    drawn = script.picture(found, "dark")
    assert (drawn.count("greedy"), drawn.count("T=0.8")) == (2, 1)
    assert drawn.count("1.0 times") == 0, "plain decoding is told in tokens/s"


@pytest.mark.parametrize("script", ["bench_headline"], indirect=True)
def test_the_page_beside_llama_cpp_has_the_recorded_rows(script: ModuleType) -> None:
    page = ROOT / "docs" / "benchmarks" / "headline.md"
    rows = script.read_rows(page.parent / "raw" / "headline.json")
    kept = page.read_text(encoding="utf-8")
    assert kept == script.document(kept, rows), f"run python scripts/bench_headline.py --rows ... --page {page}"
    assert script.table(rows, "real").count("\n") == 2 + 8


@pytest.mark.parametrize("script", ["reference"], indirect=True)
def test_the_man_page_is_that_of_the_command_line(script: ModuleType) -> None:
    kept = (ROOT / "docs" / "man" / "specrun.1").read_text(encoding="utf-8")
    assert kept == script.man(), "run python scripts/reference.py --man docs/man/specrun.1"


@pytest.mark.parametrize("script", ["reference"], indirect=True)
def test_the_reference_has_every_command_and_option(script: ModuleType) -> None:
    page = script.markdown()
    for name, command in script.commands():
        assert f"\n## {name}\n" in page
        for own in script.options(command).values():
            assert all(option.help for option in own), f"an option of {name} has no help"
            assert all(f"`{script.spelling(option)}`".replace("|", "\\|") in page for option in own)


@pytest.mark.parametrize("script", ["record_terminal"], indirect=True)
def test_a_recording_draws_each_screen_once(script: ModuleType) -> None:
    recording = script.Recording()
    for text in ("$ ", "a", "", "\r\n\x1b[2mdim\x1b[0m \x1b[1;36mbold <&>\x1b[0m"):
        recording.feed(text)
    start, screen = recording.frames[-1]
    assert start >= 0
    assert screen[1] == ((0, "dim", "dim", False), (4, "bold <&>", "cyan", True))
    drawn = script.svg(recording.frames, "light")
    root = ElementTree.fromstring(drawn)
    assert "".join(root.itertext()).count("bold <&>") == 1
    for theme in ("light", "dark"):
        kept = ElementTree.parse(ROOT / "docs" / "pictures" / f"chat-{theme}.svg")
        frames = [group for group in kept.iter("{http://www.w3.org/2000/svg}g") if "id" in group.attrib]
        seen = [group for group in frames if group.get("visibility") != "hidden"]
        assert seen == frames[-1:], "what a viewer without animation shows"
    assert json.dumps(screen)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["model_guide"], indirect=True)
def test_the_guide_to_models_follows_from_the_catalog_and_placement(script: ModuleType) -> None:
    kept = script.DOCUMENT.read_text(encoding="utf-8")
    assert kept == script.document(kept), "run python scripts/model_guide.py"
    assert script.table() in kept


@pytest.mark.slow
@pytest.mark.parametrize("script", ["model_guide"], indirect=True)
def test_the_guide_recommends_what_fits(script: ModuleType) -> None:
    for card, ram in [*((card, script.RAM_BESIDE) for card in script.CARDS), *((0, ram) for ram in script.ALONE)]:
        here = script.machine(card, ram)
        found = list(script.choices(here))
        assert len({choice.entry.alias for choice in found}) == len(found) >= 2
        assert any(choice.entry.kind == "moe" for choice in found)
        assert any(choice.entry.drafts for choice in found)
        for choice in found:
            assert choice.found.fits in ("vram", "partly", "ram"), "nothing is read from disk in every pass"
            assert choice.found.placement.vram_bytes <= card * script.GiB
            assert choice.found.placement.ram.used_bytes <= ram * script.GiB
            assert f"`{choice.entry.alias}`" in script.table()
