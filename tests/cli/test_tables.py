"""What commands show as tables fits a terminal of 80 and of 120 columns, and no word is broken there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from rich.cells import cell_len
from rich.console import RenderableType

from specrun.bench.rows import Row, summarise
from specrun.catalog import embedded
from specrun.cli import comparing
from specrun.cli.doctor import as_table, lines
from specrun.decoding.statistics import Statistics
from specrun.doctor import FACT, Finding
from specrun.hardware.memory import Memory
from specrun.llama_settings import LlamaSettings
from specrun.profiles import profile_files
from specrun.profiles.profile import Profile, TriedSettings
from specrun.speculation.drafters.cost_aware import ADAPTIVE
from specrun.speculation.planning.pass_sizes import ANY_SIZE
from specrun.verifying.findings import Divergence
from specrun.verifying.findings import Finding as Compared
from specrun.views import measurements, output
from specrun.views.output import LiteralConsole
from tests.conftest import SpecrunHere
from tests.profiles.test_profile import made

TARGET, DRAFT = "Qwen2.5-Coder-14B-Instruct-Q4_K_M.gguf", "Qwen2.5-Coder-0.5B-Instruct-Q8_0.gguf"
PLAN = ADAPTIVE.plan(64, 16, 8)


def profile() -> Profile:
    sizes = {n: 100.0 + n for n in (1, 2, 4, 8, 16, 32, 64, 128)}
    tried = TriedSettings("no flash attention, K and V f32", sizes, ANY_SIZE, 1.0, 10.0)
    settings = LlamaSettings(threads=16, threads_batch=32, repack=False, flash_attn="off", type_k="f32", type_v="f32")
    return made(target=TARGET, draft=DRAFT, tried=[tried, tried], settings=settings)


def bench_rows() -> list[Row]:
    sample = [Statistics(completion_tokens=60, seconds=1.3, passes=10, first_token_seconds=0.5, accepted=[3] * 10)]
    return [summarise("auto", str(PLAN), kind, [sample], [sample], 19.0, 9 * 2**30, PLAN) for kind in ("code", "prose")]


def compared() -> list[Compared]:
    divergence = Divergence(3, 0.0123, 0.0456, "some text", "another text")
    finding = Compared("structured", "a prompt", 0.8, 1, str(PLAN), n_tokens=64, n_passes=20, n_drafted=20)
    return [finding, replace(finding, divergence=divergence)]


FINDINGS = [
    Finding("versions", "ok", "specrun 0.1.0, Python 3.11.7, llama-cpp-python 0.3.36, llama.cpp 0.5.0-dev of a build"),
    *(Finding(f"{FACT}{name}", "ok", "something holds") for name in ("this", "that")),
    Finding("other load", "warn", "other programs hold 2.0 of 2 cores, so that threads wait", "end them"),
]
VIEWS: dict[str, Callable[[], RenderableType]] = {
    "tune --show": lambda: measurements.render(profile()),
    "bench": lambda: measurements.bench_table(bench_rows()),
    "verify": lambda: comparing.report(compared()),
    "doctor": lambda: as_table(FINDINGS),
}
COMMANDS = ("models list", f"models info {embedded.TARGET}", "models pairs qwen-14b", "tune --list", "methods")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("what", [*VIEWS, *COMMANDS], ids=lambda what: str(what).partition(" /")[0])
def test_no_line_is_too_long_and_no_word_is_broken(
    here: SpecrunHere, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], what: str, width: int
) -> None:
    profile_files.save(profile())
    monkeypatch.setattr(
        Memory, "read", lambda: Memory(64_000_000_000, 24_000_000_000)
    )  # what is free decides the words

    def shown() -> list[str]:
        if what in COMMANDS:
            return here(*what.split()).stdout.splitlines()
        output.print_table(VIEWS[what]())
        return capfd.readouterr().out.splitlines()

    in_pipe = shown()
    assert all(line == line.rstrip() for line in in_pipe)
    monkeypatch.setattr(output, "stdout", LiteralConsole(force_terminal=True, color_system=None, width=width))
    drawn = shown()
    assert max(map(cell_len, drawn)) <= width
    text = " ".join(drawn)
    known = {word.rstrip(",") for word in f"{' '.join(in_pipe)} left out in this width:".split()}
    broken = [word for word in text.split() if word.rstrip(",") not in known and cell_len(word) < width // 2]
    assert not broken


def test_memory_is_in_decimal_units_as_everywhere() -> None:
    assert "| 9.66 GB |" in measurements.bench_text(bench_rows(), "md")


def test_settings_are_said_in_words_and_times_in_local_time(here: SpecrunHere) -> None:
    profile_files.save(profile())
    assert f"{datetime(2026, 1, 1, tzinfo=timezone.utc).astimezone():%Y-%m-%d %H:%M}" in here("tune", "--list").stdout
    words = measurements.settings_words(profile().settings)
    assert words == [
        "16 threads",
        "32 threads for passes over several tokens",
        "weights in the order of the file",
        "flash attention off",
        "KV cache in f32",
    ]


def test_facts_that_hold_are_one_line_and_others_their_own() -> None:
    broken = Finding(f"{FACT}other", "warn", "something does not hold", "build it anew")
    for findings, line in ((FINDINGS, "all 2 that"), ([*FINDINGS, broken], "2 of 3 that")):
        text = lines(findings)
        assert line in text
        assert "this" not in text.split()
    assert "fact: other" in text
