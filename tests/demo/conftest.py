"""The demonstration's pair in sizes that a test can afford."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specrun import demo as wide_pair
from specrun.catalog import embedded
from specrun.catalog.resolve import Fetcher
from specrun.demo import N_DRAFTED
from specrun.loading.model import Model
from specrun.loading.opening import open_model
from specrun.long_run import Run
from specrun.options.machine_options import MachineOptions
from specrun.options.speculation_options import ModelOptions, SpeculationOptions


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded pair a little deeper, and memory for none of its layers."""
    widened = {"target": (embedded.TARGET, {"layers": 9}), "draft": (embedded.DRAFT, {"layers": 5})}
    monkeypatch.setattr(wide_pair, "WIDENED", widened)
    monkeypatch.setattr(wide_pair, "MOST_RAM", 100_000_000)


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Callable[[int | None], Model]:
    """Loads that pair as the demonstration does, with so many bytes of memory."""
    request.getfixturevalue("small")

    def opened(most_ram: int | None) -> Model:
        target, draft = wide_pair.wide_pair(Run())
        speculation = SpeculationOptions(speculate="chain", depth=N_DRAFTED, learn=False)
        machine = MachineOptions(gpu_layers="0", gpu_layers_draft="0", threads=1)
        models = ModelOptions(str(target), str(draft))
        return open_model(models, speculation, machine, 0.0, Fetcher(False), print, most_ram=most_ram)

    return opened
