"""Several texts in one pair of contexts: an engine for each, and the room that they share."""

from __future__ import annotations

from collections.abc import Sequence

from specrun.catalog.heads import Head
from specrun.engine.engine import Engine
from specrun.engine.run_options import RunOptions
from specrun.llama import LlamaModel
from specrun.llama.lane_cells import CellLedger, LaneCells
from specrun.llama_settings import LlamaSettings

# Dead cells from which the texts are moved together, if there are more of them than of the texts' own: each row of
# attention has to skip them. By hand: moving a text costs a copy of its cache.
_MANY_DEAD = 256


class Lanes:
    """The engines that share contexts. The first has room for larger trees than the others."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = tuple(engines)
        cells = self.engines[0].target.cells
        self._ledger: CellLedger | None = cells.ledger if isinstance(cells, LaneCells) else None

    def __len__(self) -> int:
        return len(self.engines)

    def has_room(self, n: int) -> bool:
        """Whether `n` cells are free. A text without others always has room: its context is large enough for it."""
        return self._ledger is None or self._ledger.n_free >= n

    def make_room(self, n: int) -> None:
        """Move the texts together if that gives `n` free cells which there are not, or if many cells are dead.

        Raises LlamaError if llama.cpp fails; then the texts are in no cache any more.
        """
        ledger = self._ledger
        if ledger is None:
            return
        n_alive = sum(engine.target.n_cached for engine in self.engines)
        if ledger.n_dead > max(n_alive, _MANY_DEAD) or ledger.n_free < n <= ledger.n_free + ledger.n_dead:
            targets = sorted((engine.target for engine in self.engines), key=lambda target: target.cells.last)
            with ledger.changing():
                ledger.free_dead()
                for target in targets:
                    target.move_down()


def why_one_at_a_time(
    options: RunOptions, settings: LlamaSettings, target: LlamaModel, draft: LlamaModel | None, head: Head | None
) -> str | None:
    """Why texts are written one after the other; None where several can be written at the same time.

    settings: those that are decided for the target. draft: the model or the head that drafts.
    """
    for model in (target, draft):
        if model and model.is_recurrent:
            return f"{model.name} has recurrent layers, which keep one state"
        if model and model.has_window:
            return f"{model.name} has layers that attend to a window only, whose cells are given away"
    if head:
        return "a head drafts from the states of one text"
    if options.pads and settings.gpu_layers:
        return "on a GPU a token's bits depend on the cells in front of it"
    return None
