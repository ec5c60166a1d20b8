"""What to load and how to run it, the size of the contexts that this needs, and what there is for it here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specrun.catalog.gguf_file import GgufFile
from specrun.errors import UsageError
from specrun.hardware.machine import Device, offload_devices
from specrun.hardware.memory import Memory
from specrun.llama import devices, offload_threshold
from specrun.llama.context import ContextConfig
from specrun.llama.slot_cells import n_sequences
from specrun.llama_settings import UNDECIDED, LlamaSettings, ResidencyChoice
from specrun.loading.kept_states import KeptStates
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

    def context_config(
        self, plans: Sequence[Plan], n_ctx_train: int, states: KeptStates | None = None
    ) -> ContextConfig:
        """The size of contexts in which each of `plans` and `largest` can run.

        n_ctx_train: see `context_length`. states: those of a model with recurrent layers.
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
            n_ctx=max(context_length(self.ctx_size, n_ctx_train), self.shared_tokens or 0) + n_nodes + MOST_PADDED,
            n_seq_max=n_seq_max,
            slots=slots,
            n_batch=max(self.settings.prompt_pass, budget + MOST_PADDED),
            n_outputs=n_outputs,
            n_snapshots=states.n_snapshots if states else 0,
        )

    def all_plans(self, plans: Sequence[Plan]) -> Sequence[Plan]:
        """`plans`, and `largest` if there is one: the plans for which contexts must have room."""
        return [*plans, self.largest] if self.largest else plans


@dataclass(frozen=True)
class Here:
    """What a load finds. It is read once, before anything is loaded, and passed to whatever asks: so nothing depends on
    when it is asked, and memory that a load has taken counts for no decision about it.

    target, draft: the headers of the files; None for a draft for which there need be no room.
    gpus: those that llama.cpp divides layers among, RPC servers included, with their free memory. ram_bytes: free RAM.
    """

    target: GgufFile
    draft: GgufFile | None
    gpus: tuple[Device, ...]
    ram_bytes: int

    @classmethod
    def of(cls, options: RunOptions) -> Here:
        """What there is now. Raises ModelFileError, and the errors of `devices.devices`.

        The backends start, so the threshold of offloading is settled: UsageError if this process has another.
        """
        options = options.with_profile
        offload_threshold.settle(options.settings.offload_min_batch)
        target = GgufFile.read(options.target)
        draft = GgufFile.read(options.draft) if options.draft and (options.drafts or options.pads) else None
        gpus = offload_devices(devices.devices(options.settings.rpc))
        return cls(target, draft, gpus, Memory.read().available_bytes)

    @property
    def free_bytes(self) -> int:
        """Bytes of RAM and VRAM together that are free."""
        return self.ram_bytes + sum(gpu.free_bytes for gpu in self.gpus if not gpu.shares_ram)


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
