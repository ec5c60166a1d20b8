"""What to load and how to run it, what a profile of that depends on, and the size of the contexts that it needs: their
tokens, their sequences, and the recurrent states by which a cache can be rolled back to what was accepted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import is_untried, keeps_snapshots, recurrent_layers, state_bytes
from specrun.errors import UsageError
from specrun.hardware.machine import surroundings
from specrun.llama import devices
from specrun.llama.context import ContextConfig
from specrun.llama.slot_cells import n_sequences
from specrun.llama_settings import UNDECIDED, LlamaSettings, ResidencyChoice
from specrun.profiles.profile import Profile
from specrun.speculation.method import Plan
from specrun.speculation.planning.pass_sizes import MOST_PADDED
from specrun.speculation.tree import MAX_LEAVES

DEFAULT_CTX_SIZE = 4096  # tokens: K and V of a 14B, 0.2 MB a token, then take a tenth of its weights in Q4_K_M
# Nodes of the largest trees of `auto` where weights are near: room for larger ones would take memory for nothing. The
# best fixed trees there have at most 32 (docs/benchmarks/tune.md).
NEAR_BUDGET = 64
_MAX_SAFE_CTX_SIZE = 2**24  # tokens, beyond any model's context: the longest so far is 10 * 2**20
# Most leaf paths of the tree of each further text, and of all of them: each takes a sequence id and a row of logits, of
# which 64 take 39 MB with a vocabulary of 152,000. Trees of usual size in a shared pass have 16 nodes.
_LEAVES_OF_OTHERS, _LEAVES_OF_ALL_OTHERS = 16, 64

_MOST_SNAPSHOTS = 8  # of a plan that specrun chooses: they make plain passes 4 % longer, 16 would 6 (docs/hybrids.md)
_MOST_ASKED_FOR = 32  # of a plan that the user chose; a checkpoint, which has no such bound, serves longer paths
# A usual chain's depth: with fewer snapshots than this, and than the plans' depth, a checkpoint is better.
_FEWEST_SNAPSHOTS = 4
# Most that snapshots take, as a share of the bytes of weights in RAM: the eight of a Qwen3.5 27B, 150 MB each, fit.
_SNAPSHOTS_SHARE = 0.1
_STREAMED_SNAPSHOTS_SHARE = 0.01  # and of streamed weights, of which as much more is streamed in every pass
_SMALL_SNAPSHOTS = 64_000_000  # bytes that snapshots may take in any case, as any machine has them


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


@dataclass(frozen=True)
class RunOptions:
    """What to load and how to run it."""

    target: Path  # the target's GGUF file
    draft: Path | None  # the draft's GGUF file; None drafts from the text itself or not at all
    plans: tuple[Plan, ...]  # the plan to follow, or several, of which the fastest is chosen while writing
    largest: Plan | None = None  # a further plan for which the contexts must have room; None for none
    ctx_size: int | None = None  # tokens of prompt and answer; None: as the model was trained for, at most 4096
    settings: LlamaSettings = UNDECIDED  # for the target, as far as decided; specrun chooses the others
    draft_settings: LlamaSettings = UNDECIDED  # the same for the draft
    profile: Profile | None = None  # of this pair on this machine; it fills settings that are not decided
    follow: bool = True  # whether to follow the profile's plans instead of `plans`
    exact: bool = False  # whether every pass must give a token the same bits as without speculation
    residency: ResidencyChoice = "auto"  # whether specrun streams weights that do not fit into RAM, where it can
    chat_template: str | None = None  # Jinja, or a name of llama.cpp's; None: the target's own
    steps_down: int = 0  # smaller placements to begin with, because passes ran out of memory with those before
    may_shrink: bool = False  # whether the bounds of `plans` are left to specrun, so that they may be smaller
    parallel: int = 1  # most texts that are written at the same time, within one context
    shared_tokens: int | None = None  # tokens of all these texts together; None for as many as one of them may have

    @property
    def folders(self) -> tuple[str, str]:
        """The names of the folders in which the target and the draft lie; empty for no draft."""
        target, draft = (file.parent.resolve().name if file else "" for file in (self.target, self.draft))
        return target, draft

    @property
    def with_profile(self) -> RunOptions:
        """The options with the profile's settings where they are not decided and, with `follow`, with its plans."""
        if not self.profile:
            return self
        settings = self.settings.over(self.profile.settings)
        plans = self.plans
        if self.follow:
            followed = self.profile.candidates()
            methods = {plan.method for plan in followed}
            plans = (*followed, *(plan for plan in plans if plan.method not in methods))
        may_shrink = self.may_shrink and not self.follow
        return replace(self, settings=settings, plans=plans, may_shrink=may_shrink)

    def with_trees_of(self, most: int) -> RunOptions:
        """The options with trees of at most so many nodes, if their bounds are left to specrun."""
        if not self.may_shrink:
            return self
        plans = [p.method.plan(min(p.budget, most), min(p.depth, most - 1)) for p in self.plans]
        return replace(self, plans=tuple(plans))

    @property
    def alone(self) -> RunOptions:
        """The options for texts that are written one after the other."""
        return replace(self, parallel=1, shared_tokens=None)

    @property
    def pads(self) -> bool:
        """Whether passes may be padded to sizes that give a token the same bits."""
        return self.exact or (self.profile is not None and self.profile.pads)

    @property
    def drafts(self) -> bool:
        """Whether the draft will be loaded, which takes a plan that uses it."""
        return self.draft is not None and any(plan.drafts and plan.method.needs_draft for plan in self.plans)

    def context_config(self, plans: Sequence[Plan], ctx_size: int, states: KeptStates | None = None) -> ContextConfig:
        """The size of contexts in which each of `plans` and `largest` can run.

        ctx_size: tokens of a text (`context_length`). states: those of a model with recurrent layers.
        """
        plans = self.all_plans(plans)
        budget = max(plan.budget for plan in plans)
        n_leaves = max(1 if plan.is_chain else plan.shape.n_leaves if plan.shape else plan.budget for plan in plans)
        # Two paths are compared where the sizes of exact passes are measured.
        n_leaves = max(n_leaves, 2 if self.pads else 1)
        if states:
            n_texts = min(states.n_texts, self.parallel)
            slots = (1,) * n_texts if n_texts > 1 else ()
        else:
            slots = _slots(n_leaves, self.parallel) if self.parallel > 1 else ()
        n_seq_max = states.n_sequences if states else n_sequences(slots) or min(n_leaves, MAX_LEAVES)
        n_outputs = max(budget, n_seq_max) + (MOST_PADDED if self.pads else 0)
        # The trees of a pass have no more nodes than it has rows of logits, however many texts there are.
        n_nodes = min(budget * self.parallel, n_outputs)
        # Beside the tree there is room for padding, or for committed tokens that a pass decodes again.
        return ContextConfig(
            n_ctx=max(ctx_size, self.shared_tokens or 0) + n_nodes + MOST_PADDED,
            n_seq_max=n_seq_max,
            slots=slots,
            n_batch=max(self.settings.prompt_pass, budget + MOST_PADDED),
            n_outputs=n_outputs,
            n_snapshots=states.n_snapshots if states else 0,
        )

    def recurrent_states(self, file: GgufFile, is_streamed: bool) -> KeptStates | None:
        """The states that the target keeps; None if it has no recurrent layer.

        Going back to a snapshot is free, but each takes the memory of a state, and every pass, plain passes too, writes
        a part of each. With a checkpoint, committed tokens are decoded again, which costs little where weights are
        streamed: there memory counts more. A checkpoint costs plain passes nothing, so it is also taken where specrun
        chooses the plan and only draft sources draft, which guess now and then. Padding is dropped after every pass,
        which only a checkpoint allows in passes of every size. Of several texts only one drafts, while it is alone, so
        a checkpoint is enough. Texts whose passes are padded are written one after the other.

        file: the target's. is_streamed: whether its weights do not fit into RAM.
        """
        if is_untried(file):
            return KeptStates()
        if not recurrent_layers(file):
            return None
        plans = self.all_plans(self.plans)
        depth = max((plan.depth for plan in plans), default=0)
        n_texts = 1 if self.pads else min(self.parallel, most_texts(file) or 1)
        if n_texts > 1:
            return KeptStates(n_texts + (depth > 0), n_texts=n_texts)
        if not depth and not self.pads:
            return KeptStates()
        is_asked_for = len(plans) == 1
        wanted = depth if is_asked_for else min(depth, _MOST_SNAPSHOTS)
        share = _STREAMED_SNAPSHOTS_SHARE if is_streamed else _SNAPSHOTS_SHARE
        affordable = int(max(share * file.n_bytes, _SMALL_SNAPSHOTS)) // max(sum(state_bytes(file)), 1)
        n_snapshots = min(wanted, affordable)
        is_enough = n_snapshots >= (wanted if is_asked_for else min(wanted, _FEWEST_SNAPSHOTS))
        # A further plan for which there must be room may be one with a draft that is loaded later.
        is_worth_it = self.drafts or is_asked_for or (self.largest is not None and self.largest.method.needs_draft)
        if keeps_snapshots(file) and is_worth_it and wanted <= _MOST_ASKED_FOR and is_enough and not self.pads:
            return KeptStates(n_snapshots=n_snapshots)
        return KeptStates(n_sequences=2)

    def all_plans(self, plans: Sequence[Plan]) -> Sequence[Plan]:
        """`plans`, and `largest` if there is one: the plans for which contexts must have room."""
        return [*plans, self.largest] if self.largest else plans


def _slots(n_leaves: int, n: int) -> tuple[int, ...]:
    """Most leaf paths of each of `n` texts that share a context. The first, mostly alone, gets all it can use."""
    # Two at least, as what must not be given away is on two sequences (`slot_cells`).
    n_leaves, left = max(n_leaves, 2), MAX_LEAVES - n_sequences((0,) * n)
    others = max(min(n_leaves, _LEAVES_OF_OTHERS, _LEAVES_OF_ALL_OTHERS // (n - 1), left // n), 2)
    return (min(n_leaves, left - others * (n - 1)), *[others] * (n - 1))


def context_length(ctx_size: int | None, n_ctx_train: int) -> int:
    """Tokens of text in a context, for a model that was trained on `n_ctx_train` tokens (0 if its file does not say).

    Raises UsageError for a `ctx_size` out of range.
    """
    if ctx_size is None:
        return min(n_ctx_train or DEFAULT_CTX_SIZE, DEFAULT_CTX_SIZE)
    if not 2 <= ctx_size <= _MAX_SAFE_CTX_SIZE:
        raise UsageError(f"--ctx-size must be between 2 and {_MAX_SAFE_CTX_SIZE}; got {ctx_size}")
    return ctx_size


def most_texts(file: GgufFile) -> int | None:
    """Texts that may be written at a time, as far as their states take a small part of what the weights take; None
    without a recurrent layer. Each text has a state, and a copy of the one after its prompt.
    """
    if is_untried(file):
        return 1
    if not recurrent_layers(file):
        return None
    of_a_text = 2 * sum(state_bytes(file)) or 1  # 0 in a broken file, which llama.cpp refuses
    return max(int(max(_SNAPSHOTS_SHARE * file.n_bytes, _SMALL_SNAPSHOTS)) // of_a_text, 1)


def states_of_draft(file: GgufFile) -> KeptStates | None:
    """The states of a draft, which returns to the committed text before each tree; None without a recurrent layer.

    A draft drafts in passes over single tokens, which snapshots of the last pass cannot roll back.
    """
    return KeptStates(n_sequences=2) if recurrent_layers(file) or is_untried(file) else None


def identity_of(options: RunOptions) -> dict[str, Any]:
    """All that a profile for these options depends on, by part, as JSON values: files, what the user has decided, this
    machine and this build of llama.cpp. Raises ModelFileError for a file that cannot be read.
    """
    return {**subject_of(options), **surroundings(devices.this_machine(options.settings.rpc))}


def subject_of(options: RunOptions) -> dict[str, Any]:
    """The same without what it tells of the machine and of llama.cpp."""
    target = GgufFile.read(options.target)
    both = {"target": options.settings, "draft": options.draft_settings}
    decided = {name: {key: v for key, v in asdict(given).items() if v is not None} for name, given in both.items()}
    # Where weights do not fit into RAM, all times depend on how they are read.
    how = {} if options.residency == "auto" else {"residency": options.residency}
    return {
        "files": [target.identity, GgufFile.read(options.draft).identity if options.draft else None],
        "context": context_length(options.ctx_size, target.n_ctx_train),
        "settings": json.loads(json.dumps({**decided, "exact": options.exact, **how})),
    }
