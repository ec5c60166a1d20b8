"""Options from the fields of a dataclass."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import typer

from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.options.expand import expanded, option
from specrun.options.machine_options import MachineOptions


@dataclass(frozen=True)
class Size:
    width: int = option(1, "N", "How wide it is.", "-w")
    height: int | None = option(None, "N", "How high it is.")


def test_fields_become_options() -> None:
    seen = []

    @expanded
    def draw(name: str, *, size: Size, colour: str = "red") -> str:
        """What it says."""
        seen.append((name, size, colour))
        return "done"

    assert draw.__doc__ == "What it says."
    assert list(inspect.signature(draw).parameters) == ["name", "width", "height", "colour"]
    assert draw(name="a", width=3, height=None, colour="blue") == "done"
    assert seen == [("a", Size(3), "blue")]
    app = typer.Typer()
    app.command()(draw)
    app(["b", "-w", "4", "--height", "5"], standalone_mode=False)
    assert seen[1] == ("b", Size(4, 5), "red")


def test_nothing_is_decided_unless_it_is_given() -> None:
    assert MachineOptions().target_settings() == MachineOptions().draft_settings() == LlamaSettings()


def test_layers() -> None:
    assert MachineOptions(gpu_layers="7").target_settings() == LlamaSettings(gpu_layers=7)
    assert MachineOptions(gpu_layers="all", gpu_layers_draft="-1").draft_settings().gpu_layers == ALL_LAYERS
    assert MachineOptions(gpu_layers="auto").target_settings() == LlamaSettings()


def test_target_and_draft_have_settings_of_their_own() -> None:
    options = MachineOptions(threads=3, cpu_moe=True, tensor_split="3,1", cache_type_k="f32", cache_type_v_draft="q8_0")
    assert options.target_settings() == LlamaSettings(
        threads=3, n_cpu_moe=ALL_LAYERS, tensor_split=(3, 1), type_k="f32"
    )
    assert options.draft_settings() == LlamaSettings(threads=3, type_v="q8_0")


def test_settings_over_others() -> None:
    both = LlamaSettings(threads=2, repack=False).over(LlamaSettings(threads=8, repack=True, type_k="f32"))
    assert both == LlamaSettings(threads=2, repack=False, type_k="f32")
