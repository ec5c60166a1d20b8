"""How many recurrent states a context keeps, so that its cache can be rolled back to what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import is_untried, keeps_snapshots, recurrent_layers, state_bytes
from specrun.speculation.method import Plan

_MOST_SNAPSHOTS = 8  # of a plan that specrun chooses: they make plain passes 4 % longer, 16 would 6 (docs/hybrids.md)
_MOST_ASKED_FOR = 32  # of a plan that the user chose; a checkpoint, which has no such bound, serves longer paths
_FEWEST = 4  # a usual chain's depth: with fewer snapshots than this, and than the plans' depth, a checkpoint is better
# Most that snapshots take, as a share of the bytes of weights in RAM: the eight of a Qwen3.5 27B, 150 MB each, fit.
_SHARE = 0.1
_STREAMED_SHARE = 0.01  # and of streamed weights, of which as much more is streamed in every pass
_SMALL = 64_000_000  # bytes that snapshots may take in any case, as any machine has them


@dataclass(frozen=True)
class KeptStates:
    """The states of a context with recurrent layers."""

    n_sequences: int = 1  # sequences, each with a state: one for each text, and the checkpoint's if there is one
    n_snapshots: int = 0  # further states of the last pass
    n_texts: int = 1  # texts that may be written at a time

    @property
    def n_states(self) -> int:
        """All states, the copies of those after prompts included."""
        return self.n_sequences * (1 + self.n_snapshots) + self.n_texts


def most_texts(file: GgufFile) -> int | None:
    """Texts that may be written at a time, as far as their states take a small part of what the weights take; None
    without a recurrent layer. Each text has a state, and a copy of the one after its prompt.
    """
    if is_untried(file):
        return 1
    if not recurrent_layers(file):
        return None
    of_a_text = 2 * sum(state_bytes(file)) or 1  # 0 in a broken file, which llama.cpp refuses
    return max(int(max(_SHARE * file.n_bytes, _SMALL)) // of_a_text, 1)


def of_target(
    file: GgufFile, plans: Sequence[Plan], pads: bool, is_streamed: bool, has_draft: bool, n_texts: int = 1
) -> KeptStates | None:
    """The states of a target that follows `plans`; None if it has no recurrent layer.

    Going back to a snapshot is free, but each takes the memory of a state, and every pass, plain passes too, writes a
    part of each. With a checkpoint, committed tokens are decoded again, which costs little where weights are streamed:
    there memory counts more. A checkpoint costs plain passes nothing, so it is also taken where specrun chooses the
    plan and only draft sources draft, which guess now and then. Padding is dropped after every pass, which only a
    checkpoint allows in passes of every size. Of several texts only one drafts, while it is alone, so a checkpoint is
    enough.

    pads: whether passes are padded. is_streamed: whether the weights do not fit into RAM. has_draft: whether a draft
        model or a head drafts. n_texts: most that are wanted at a time; padded ones are written one after the other.
    """
    if is_untried(file):
        return KeptStates()
    if not recurrent_layers(file):
        return None
    depth = max((plan.depth for plan in plans), default=0)
    n_texts = 1 if pads else min(n_texts, most_texts(file) or 1)
    if n_texts > 1:
        return KeptStates(n_texts + (depth > 0), n_texts=n_texts)
    if not depth and not pads:
        return KeptStates()
    is_asked_for = len(plans) == 1
    wanted = depth if is_asked_for else min(depth, _MOST_SNAPSHOTS)
    share = _STREAMED_SHARE if is_streamed else _SHARE
    affordable = int(max(share * file.n_bytes, _SMALL)) // max(sum(state_bytes(file)), 1)
    n_snapshots = min(wanted, affordable)
    is_enough = n_snapshots >= (wanted if is_asked_for else min(wanted, _FEWEST))
    is_worth_it = has_draft or is_asked_for
    if keeps_snapshots(file) and is_worth_it and wanted <= _MOST_ASKED_FOR and is_enough and not pads:
        return KeptStates(n_snapshots=n_snapshots)
    return KeptStates(n_sequences=2)


def of_draft(file: GgufFile) -> KeptStates | None:
    """The states of a draft, which returns to the committed text before each tree; None without a recurrent layer.

    A draft drafts in passes over single tokens, which snapshots of the last pass cannot roll back.
    """
    return KeptStates(n_sequences=2) if recurrent_layers(file) or is_untried(file) else None
