"""The list of facts about llama.cpp that specrun relies on, and what goes without each of them."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from specrun.catalog import entries
from specrun.errors import LlamaError, SpecrunError
from specrun.llama import library, offload_threshold, tiled_kernels
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.facts import bits, refusal, tiny_model
from specrun.llama.heads import hidden_states
from specrun.llama_settings import UNDECIDED, LlamaSettings

_VERSION = 2  # of the checks; raise it when one of them changes
_NO_GPU = ("base", "cpu", "rpc", "blas")  # libraries of ggml that read nothing about GPUs
_found: dict[Fact, str | None] = {}  # of this process: why each fact that was asked for does not hold


@dataclass(frozen=True)
class Fact:
    """Something that specrun relies on, and llama.cpp does not promise.

    name: for people. relied_on: the fact, as a sentence. without: what happens without it, as a clause.
    check: returns why the fact does not hold, as a clause, or None if it holds. It gets settings of a context that
        decide no more than what the first context of a process decides for all of them, and may raise SpecrunError or
        OSError if it cannot be run.
    needs: a fact without which the check is not run, and fails.
    rebuilt_with: options of CMake for a build in which the fact holds; none: the release that is known to work has it.
    """

    name: str
    relied_on: str
    without: str
    check: Callable[[LlamaSettings], str | None]
    needs: Fact | None = None
    rebuilt_with: tuple[str, ...] = ()

    def notice(self, why: str) -> str:
        """The line for a user whose feature is off. why: as `why_not` returns it."""
        return f"{self.without}, because {why}"


def _unknown(names: Iterable[str], files: Iterable[Path], what: str = "") -> str | None:
    """A clause that says which names none of these libraries has as a string; None if they have all. what: they are."""
    lacking = list(names)
    for path in files:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # Linkers store a string that is the end of a longer string only there, so anything may come before it.
            lacking = [name for name in lacking if content.find(name.encode() + b"\0") < 0]
    return f"this llama.cpp does not know {what}{' and '.join(lacking)}" if lacking else None


def _check_tiled(_: LlamaSettings) -> str | None:
    """Whether the build knows both variables. On processors without tiled kernels nothing sets them."""
    return _unknown(tiled_kernels.VARIABLES, library.files()) if tiled_kernels.has_processor() else None


def _check_threshold(_: LlamaSettings) -> str | None:
    """Whether the build knows the variable. Only GPU backends read it, so a build without them needs no such name."""
    files = library.files()
    gpus = [path for path in files if "ggml-" in path.name and not any(f"ggml-{part}" in path.name for part in _NO_GPU)]
    return _unknown([offload_threshold.VARIABLE], files) if gpus else None


def _check_architectures(_: LlamaSettings) -> str | None:
    """Whether this build knows every architecture of the tables."""
    named = sorted(frozenset().union(*entries.TABLES.values()))
    return _unknown(named, library.files(), "the architecture ")


def _check_hidden_states(settings: LlamaSettings) -> str | None:
    """Whether the functions are there, and give the rows that enter the first layer: rows of the embedding."""
    try:
        hidden_states.functions()
    except LlamaError as error:
        return str(error).partition(";")[0]
    tokens = [3, 1, 3, 2]
    config = ContextConfig(256, n_seq_max=1, n_batch=8, n_outputs=4, settings=LlamaSettings(1, tiled=settings.tiled))
    with tiny_model.loaded() as model, LlamaContext(model, config) as context:
        hidden_states.keep_layer_inputs(context.handle, (0,))
        context.decode(committed_tokens(tokens, 0, 1, 1))
        rows = hidden_states.layer_inputs(context.handle, 0, len(tokens), model.n_embd).copy()
    if not np.array_equal(rows, tiny_model.embedding(tokens)):
        return "this llama.cpp gives other rows than those that enter a layer"
    return None


CELLS = Fact(
    "cells of a pass",
    "llama.cpp puts the tokens of a pass into the lowest free cells of the KV cache, in the order of the batch",
    "texts are written one at a time",
    bits.check_cells,
)
REORDERED = Fact(
    "re-ordered weights",
    "weights can be computed in an order that suits this CPU",
    "weights stay in the order of the file",
    bits.check_reordered,
    rebuilt_with=bits.WITHOUT_AMX,
)
BOTH_ORDERS = Fact(
    "weights in both orders",
    "a tensor can be pointed to the weights in the file or to the re-ordered ones between two passes",
    "prompts are read more slowly than they could be",
    bits.check_orders,
    needs=REORDERED,
)
EXACT_TYPES = Fact(
    "bit-exact weights",
    "Q8_0 weights give a token the same bits in passes of every size, on both sides of every block of KV cells",
    "texts are exact up to near-ties unless --exact is given",
    bits.check_exact_types,
)
BOUNDARIES = Fact(
    "kernels of attention",
    "sizes of passes that give a token the same bits after 768 cells do so after any number of cells",
    "--exact decodes plainly",
    bits.check_boundaries,
)
TILED = Fact(
    "variables of tiled kernels",
    "llama.cpp reads from the environment which passes tiled kernels compute",
    "tiled kernels stay as llama.cpp chooses them",
    _check_tiled,
)
TILED_FROM = Fact(
    "size from which tiled kernels begin",
    "tiled kernels leave out weights whose tensor says that it has data of its own",
    "passes over 8 tokens and a few more take longer than they could",
    bits.check_tiled_from,
)
THRESHOLD = Fact(
    "variable of offloading",
    "llama.cpp's GPU backends read from the environment which passes copy weights to the GPU",
    "passes copy weights to the GPU as llama.cpp chooses",
    _check_threshold,
)
HIDDEN_STATES = Fact(
    "hidden states",
    "functions without a place in the public header give the rows that enter a layer of the target",
    "trained heads cannot draft",
    _check_hidden_states,
)
ARCHITECTURES = Fact(
    "tables of architectures",
    "llama.cpp treats the architectures of architectures.toml as that file says",
    "trained heads cannot draft",
    _check_architectures,
)
LAYERS_IN_TURN = Fact(
    "layers in turn",
    "llama.cpp computes a model layer by layer, and uses the weights of a layer only while it computes that layer",
    "weights that do not fit are left to the system's page cache",
    bits.check_layers_in_turn,
)

FACTS = (
    CELLS, REORDERED, BOTH_ORDERS, EXACT_TYPES, BOUNDARIES, TILED, TILED_FROM, THRESHOLD, HIDDEN_STATES,
    ARCHITECTURES, LAYERS_IN_TURN,
)  # fmt: skip


def why_not(fact: Fact, settings: LlamaSettings = UNDECIDED) -> str | None:
    """Why a fact does not hold for this build of llama.cpp, as a clause; None if it holds.

    The first time that a build is asked, the check runs. Its result is kept, except where it could not be run.
    settings: of the model that the feature is for.
    """
    if fact not in _found and fact.needs and (why := why_not(fact.needs, settings)):
        _found[fact] = why
    if fact not in _found:
        try:
            why = refusal(fact.name, _VERSION, lambda: fact.check(LlamaSettings(tiled=settings.tiled)))
        except (SpecrunError, OSError) as error:
            why = f"the check of llama.cpp's {fact.name} failed ({error})"
        _found[fact] = why or None
    return _found[fact]


def supported(settings: LlamaSettings) -> tuple[LlamaSettings, list[str]]:
    """The settings without those whose fact does not hold for this build, and a line for the user for each of them.

    Settles the threshold of offloading for this process, as no check may load a model before. Raises UsageError if the
    process has another threshold.
    """
    needed = {
        "repack": REORDERED, "tiled": TILED, "offload_min_batch": THRESHOLD, "file_order_from": BOTH_ORDERS,
        "tiled_from": TILED_FROM,
    }  # fmt: skip
    notices = []
    for name, fact in needed.items():
        if fact is BOTH_ORDERS:
            offload_threshold.settle(settings.offload_min_batch)
        if getattr(settings, name) and (why := why_not(fact, settings)):
            without = {name: None} if fact is not REORDERED else {"repack": None, "file_order_from": None}
            settings = replace(settings, **without)
            notices.append(fact.notice(why))
    return settings, notices
