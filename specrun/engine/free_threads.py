"""As many CPU threads for a pair's passes as other programs leave cores for."""

from __future__ import annotations

from collections.abc import Sequence

from specrun.engine.run_options import RunOptions
from specrun.hardware.cpu import usable_cores
from specrun.hardware.other_load import LoadWatch
from specrun.hardware.placement import Placement
from specrun.llama.context import LlamaContext
from specrun.llama_settings import LlamaSettings

_SECONDS_OF_A_LOOK = 0.25  # a shorter look says little, because the system counts processor time in steps of 10 ms
_SPLIT_TYPES = ("f16", "f32")


class FreeThreads:
    """The number of threads of a loaded pair, which `look` counts anew from what other programs did since then.

    contexts: of the target and the draft. watch: runs since before they were loaded.
    wanted: threads where nothing else computes. n: threads now.
    """

    def __init__(self, contexts: Sequence[LlamaContext], watch: LoadWatch) -> None:
        self.n = self.wanted = usable_cores()
        self._contexts = contexts
        self._watch = watch

    def look(self) -> bool:
        """Give passes as many threads as have cores of their own, between two passes. Returns whether that changed."""
        if self._watch.seconds < _SECONDS_OF_A_LOOK:
            return False
        n = self._watch.so_far().threads_beside(self.wanted)
        self._watch = LoadWatch()
        if n == self.n:
            return False
        self.n = n
        for context in self._contexts:
            context.set_threads(n)
        return True

    @property
    def notice(self) -> str | None:
        """A sentence for the user while there are fewer threads than usual; else None."""
        if self.n == self.wanted:
            return None
        return (
            "other programs hold cores, so that fewer threads compute while they do (`specrun doctor` names them, "
            "--threads sets a number)"
        )


def may_follow(options: RunOptions, target: LlamaSettings, placement: Placement | None, is_auto: bool) -> bool:
    """Whether the number of threads is open, and nothing but the speed hangs on it.

    options: with the profile, whose threads were chosen on purpose, as the user's are. target: the settings that its
    context has. placement: with a target in VRAM the cores compute next to nothing. is_auto: whether plans are chosen
    by what passes take, as the sizes of passes are then; where bits depend on them, the text depends on times anyway.
    """
    if options.with_profile.settings.threads is not None or (placement and placement.regime == "in VRAM"):
        return False
    return not divides_attention(target) or (is_auto and not options.pads)


def divides_attention(settings: LlamaSettings) -> bool:
    """Whether llama.cpp's flash attention sums a plain pass in as many parts as there are threads, behind 256 cells and
    more, so that a token's last bits depend on their number (docs/exactness.md).
    """
    k, v = settings.type_k or "f16", settings.type_v or "f16"
    return settings.flash_attn != "off" and k == v and k in _SPLIT_TYPES
