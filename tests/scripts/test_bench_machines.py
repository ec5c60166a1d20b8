"""`auto` and `specrun tune` on simulated machines: real models and the real code, with the clock of another machine."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF

pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).parents[2] / "scripts"
AGREEMENT, CELL = 70, (0.8, "code")
# The best of the whole grid of bench_machines.py on these machines are among them.
GRID = (
    OFF.plan(),
    CHAIN.plan(depth=4),
    CHAIN.plan(depth=16),
    SPECEXEC.plan(16, 6, 4),
    SPECEXEC.plan(64, 24, 16),
    SPECEXEC.plan(256, 24, 32),
    SPECEXEC.plan(512, 32, 32),
)
MACHINES = (
    "flat passes of a second",
    "RTX 4090, 70B half in VRAM",
    "H200, 7B half in VRAM, pageable",
    "2 cores, 1.8B Q4_K_M in RAM",
    "laptop of 8 cores, 7B in RAM",
    "mixture, 30B of 3B, in RAM",
)


@pytest.fixture(scope="module")
def measure() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("machines.measure")
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("simulated")


@pytest.fixture(scope="module")
def written(measure: ModuleType, folder: Path) -> dict[Any, Any]:
    return measure.grid(folder, AGREEMENT, *CELL, GRID)


def machine_of(measure: ModuleType, name: str) -> Any:
    return next(machine for machine in measure.MACHINES if machine.name == name)


@pytest.mark.parametrize("name", MACHINES)
def test_a_first_run_is_near_the_best_fixed_plan_and_a_second_run_no_slower(
    measure: ModuleType, folder: Path, written: dict[Any, Any], name: str
) -> None:
    machine = machine_of(measure, name)
    with measure.data_folder(), measure.simulated(machine):
        (first, _), (second, _) = measure.untuned(folder, AGREEMENT, *CELL)
    best = max(text.rate(machine) for text in written.values())
    assert first >= 0.85 * best
    assert second >= 0.85 * first, "which texts are easy differs from run to run, as trees do"


def test_where_passes_are_slow_and_flat_trees_have_hundreds_of_nodes_after_a_minute_of_passes(
    measure: ModuleType, folder: Path, written: dict[Any, Any]
) -> None:
    machine = machine_of(measure, MACHINES[0])
    with measure.data_folder(), measure.simulated(machine) as simulation:
        before = simulation.seconds
        profile, found = measure.tuned(folder, AGREEMENT, [CELL], "quick")
        n_plain = 1e3 * (simulation.seconds - before) / machine.ms(1, 64)
        largest = max(n for n, _, is_draft in simulation.passes if not is_draft)
    assert profile.at(CELL[0]).plan.budget >= 256
    assert largest >= 256
    assert n_plain < 120, "33 of them compare bits, and 15 write the text at the end"
    assert not profile.tried, "two settings would take 100 more"
    assert found[CELL][0] >= 0.95 * max(text.rate(machine) for text in written.values())


def test_a_simulated_machine_is_the_same_every_time(measure: ModuleType, folder: Path) -> None:
    machine = machine_of(measure, "H200, 7B in VRAM")
    rates = []
    for _ in range(2):
        with measure.data_folder(), measure.simulated(machine, noise=0.05):
            rates.append(measure.untuned(folder, AGREEMENT, *CELL, runs=1))
    assert rates[0] == rates[1]


@pytest.mark.parametrize("name", ["2 cores, 1.8B Q4_K_M streamed", "RTX 4090, 70B half in VRAM", MACHINES[3]])
def test_many_prompts_are_never_slower_and_several_share_passes(measure: ModuleType, folder: Path, name: str) -> None:
    many, machine = importlib.import_module("machines.many"), machine_of(measure, name)
    alone, two, six = (many.took(folder, machine, AGREEMENT, n, 6, (20, 80), 32) for n in (1, 2, 6))
    assert alone.n_tokens == two.n_tokens == six.n_tokens == 6 * 32
    assert two.seconds <= 1.02 * alone.seconds
    assert six.seconds < two.seconds
    assert six.n_passes < alone.n_passes / 2
