"""What a load finds here, which layers of a pair go into VRAM by that, and what it tells of passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import MARKOV_AFTER, Head, drafting_head
from specrun.errors import UsageError
from specrun.hardware.fit import expert_share
from specrun.hardware.machine import Device, offload_devices
from specrun.hardware.memory import Memory
from specrun.hardware.model_shape import ModelShape, PlacementRequest
from specrun.hardware.placement import Placement, place
from specrun.llama import devices, offload_threshold
from specrun.llama.context import ContextConfig
from specrun.llama.parameters import gpus_have_flash
from specrun.llama_settings import FLOAT_CACHE_TYPES, LlamaSettings
from specrun.loading.run_options import NEAR_BUDGET, KeptStates, RunOptions, context_length, states_of_draft
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import Plan
from specrun.speculation.planning.draft_times import MOST_WIDTH
from specrun.speculation.planning.pass_times import MOST_TOKENS, ExpertGrowth

_ALIKE = SPECEXEC.plan(128, 16)
# Share of the free RAM that rows of logits may take: as many more weights are read in a pass, and a tree of twice the
# nodes adds 0.62 tokens (docs/benchmarks/growth.md) to some 7, which is 9 %.
_MOST_OF_RAM = 0.04
_ROW_COPIES, _FLOAT_BYTES = 4, 4
_BLOCK = 32  # numbers that all quantized types of K encode together


@dataclass(frozen=True)
class Here:
    """What a load finds. It is read once, before anything is loaded, and passed to whatever asks: so nothing depends on
    when it is asked, and memory that a load has taken counts for no decision about it.
    """

    target: GgufFile  # what the header of the target's file says
    draft: GgufFile | None  # the same of the draft's; None for a draft for which there need be no room
    gpus: tuple[Device, ...]  # those that llama.cpp divides layers among, RPC servers included, with their free memory
    ram_bytes: int  # free

    @classmethod
    def of(cls, options: RunOptions) -> Here:
        """What there is now. Raises ModelFileError, and the errors of `devices.devices`.

        options: with the profile's settings.
        The backends start, so the threshold of offloading is settled: UsageError if this process has another.
        """
        offload_threshold.settle(options.settings.offload_min_batch)
        target = GgufFile.read(options.target)
        draft = GgufFile.read(options.draft) if options.draft and (options.drafts or options.pads) else None
        gpus = offload_devices(devices.devices(options.settings.rpc))
        return cls(target, draft, gpus, Memory.read().available_bytes)

    @property
    def free_bytes(self) -> int:
        """Bytes of RAM and VRAM together that are free."""
        return self.ram_bytes + sum(gpu.free_bytes for gpu in self.gpus if not gpu.shares_ram)


@dataclass(frozen=True)
class FirstGuesses:
    """What the places of the weights tell before a pass was made."""

    experts: ExpertGrowth | None = None  # how passes grow with their tokens in a mixture; None for a dense model
    copies_from: int | None = None  # tokens from which passes copy weights to a GPU; None where none does
    # Nodes of the largest trees that contexts have room for: many where passes wait for weights that are neither in
    # VRAM nor in RAM alone, so that they may pay.
    largest: int = NEAR_BUDGET


@dataclass(frozen=True)
class LoadPlan:
    """A pair that will be loaded, and where its layers will lie: decided once, by what is there then."""

    options: RunOptions  # with the profile's settings, and with trees as large as contexts are to have room for
    here: Here
    placement: Placement  # on a machine without a GPU all lies in RAM, or is streamed
    states: KeptStates | None = None  # the recurrent states that the target keeps; None without a recurrent layer
    guesses: FirstGuesses = FirstGuesses()  # what the places tell, for several plans to choose among


def plan_load(options: RunOptions, here: Here | None = None) -> LoadPlan:
    """Plan which layers go into VRAM, as many steps down as `options` say. here: None looks now.

    Contexts have room for large trees only where these may pay. So it is planned with small ones, and again with those
    that this allows.

    A layer's results on a GPU have other last bits than on the CPU. So where texts must be bit-exact, plans with and
    without the draft, and with trees of up to `_ALIKE` nodes, leave the same room for the target's layers.

    Raises UsageError for a GPU that is missing, and for a split mode that its backend lacks; ModelFileError for a file
    that cannot be read.
    """
    options = options.with_profile
    here = here or Here.of(options)
    names, n = ", ".join(gpu.name for gpu in here.gpus), len(here.gpus)
    main, shares = options.settings.main_gpu, options.settings.tensor_split or ()
    if n and main is not None and main >= n:
        raise UsageError(f"--main-gpu must be between 0 and {n - 1} ({names}); got {main}")
    if n and len(shares) > n:
        raise UsageError(f"--tensor-split must have one share for each GPU ({names}); got {len(shares)} shares")
    if len(options.plans) == 1:
        return LoadPlan(options, here, *_placed(options, here))
    near = options.with_trees_of(NEAR_BUDGET)
    placement, states = _placed(near, here)
    guesses = first_guesses(near, here, placement)
    larger = options.with_trees_of(guesses.largest)
    if larger != near:
        placement, states = _placed(larger, here)
    return LoadPlan(larger, here, placement, states, guesses)


def _placed(options: RunOptions, here: Here) -> tuple[Placement, KeptStates | None]:
    """Where the layers lie, and the recurrent states that are kept: fewer where the weights are streamed."""
    states = options.recurrent_states(here.target, is_streamed=False)
    placement = place(_request(options, here, states))
    if states and states.n_snapshots and placement.regime == "streamed":
        states = options.recurrent_states(here.target, is_streamed=True)
        placement = place(_request(options, here, states))
    for _ in range(options.steps_down):
        placement = placement.step_down() or placement
    if options.settings.split_mode == "row" and placement.vram_bytes:
        lacking = devices.without_split_buffers(options.settings.rpc)
        if lacking:
            why = f"llama.cpp cannot divide matrices among devices of the kind of {', '.join(lacking)}"
            raise UsageError(f"--split-mode row is not possible here, because {why}; choose layer or none")
    return placement, states


def _request(options: RunOptions, here: Here, states: KeptStates | None) -> PlacementRequest:
    gpus, alike = here.gpus, options.pads and bool(here.gpus)
    ctx_size = context_length(options.ctx_size, here.target.n_ctx_train)
    config = options.context_config((*options.plans, *([_ALIKE] if alike else [])), ctx_size, states)
    draft = here.draft if options.draft and (options.drafts or alike) else None
    head = drafting_head(here.target, draft) if draft else None
    of_head = _head_bytes(head, draft, config, options.all_plans(options.plans)) if head and draft else 0
    draft = None if head and head.is_own else draft  # its layers are counted as the target's

    def shape(file: GgufFile, settings: LlamaSettings, states: KeptStates | None) -> ModelShape:
        decided = attention_on_gpus(file, settings) if gpus and settings.gpu_layers != 0 else settings
        return ModelShape.of(file, config.n_ctx, decided, states.n_states if states else 1)

    return PlacementRequest(
        target=shape(here.target, options.settings, states),
        draft=shape(draft, options.draft_settings, states_of_draft(draft)) if draft else None,
        gpus=gpus,
        ram_bytes=here.ram_bytes,
        n_tokens=config.n_batch,
        n_rows=config.n_outputs,
        settings=options.settings,
        draft_settings=options.draft_settings,
        states_bytes=of_head,
    )


def attention_on_gpus(file: GgufFile, settings: LlamaSettings) -> LlamaSettings:
    """The settings for layers in VRAM, without flash attention where a GPU has no kernel of it for the model's heads.

    With it, the CPU would compute attention, after copying K and V of each layer. Unchanged if the user decided it, if
    V is of a type that needs it, for K of a type that llama.cpp refuses for such heads, and for attention of another
    kind, of which nothing is known.
    """
    heads, type_k, type_v = file.heads, settings.type_k or "f16", settings.type_v or "f16"
    if settings.flash_attn or heads is None or type_v not in FLOAT_CACHE_TYPES:
        return settings
    if type_k not in FLOAT_CACHE_TYPES and heads[-1] % _BLOCK:
        return settings
    if gpus_have_flash(*heads, type_k, type_v, settings.rpc):
        return settings
    return replace(settings, flash_attn="off")


def head_config(config: ContextConfig, plans: Sequence[Plan]) -> ContextConfig:
    """The size of a head's context, where a draft model would have `config`: its passes are small.

    A head reads prompts, too, in passes of `MOST_WIDTH` tokens, and llama.cpp keeps logits of all of them: 39 MB with
    152,000 tokens of a vocabulary. It ends the process in the first pass of a head with more sequences than tokens.
    """
    n_batch = max(MOST_WIDTH, *(plan.width for plan in plans))
    return replace(
        config,
        n_seq_max=min(config.n_seq_max, n_batch),
        n_batch=n_batch,
        n_outputs=n_batch,
        settings=replace(config.settings, batch_size=None),
    )


def _head_bytes(head: Head, file: GgufFile, config: ContextConfig, plans: Sequence[Plan]) -> int:
    """Bytes in RAM of hidden states, of the logits of a head's passes, and of a DSpark head's Markov part as numbers.

    llama.cpp keeps the target's states of a whole call for each layer that is read. file: the head's. config: of the
    target's context.
    """
    of_token = max(len(head.target_layers), 1) * head.target_width
    # A DFlash head's states are the rows themselves, in half precision. EAGLE-3's are as wide as its own.
    of_text = config.n_ctx * {"dflash": of_token // 2, "eagle3": file.n_embd, "mtp": of_token}[head.kind]
    of_call = config.n_call * of_token
    of_markov = sum(tensor.n_parameters for tensor in file.tensors if tensor.name == MARKOV_AFTER)
    return _FLOAT_BYTES * (of_text + of_call + head_config(config, plans).n_batch * file.n_vocab + of_markov)


def first_guesses(options: RunOptions, here: Here, placement: Placement) -> FirstGuesses:
    """What the places of the weights tell of a pair that is not loaded yet."""
    file = here.target
    experts = None
    if 0 < file.used_share < 1:
        experts = ExpertGrowth(file.n_experts, file.n_experts_used, expert_share(placement, file.used_share))
    largest = NEAR_BUDGET
    if placement.regime in ("partly in VRAM", "streamed"):
        # Rows of logits, of both models and in their buffers, take memory that weights need more.
        n_rows = int(_MOST_OF_RAM * placement.request.ram_bytes / (_ROW_COPIES * _FLOAT_BYTES * max(file.n_vocab, 1)))
        largest = min(max(n_rows, NEAR_BUDGET), MOST_TOKENS)
    settings = options.settings.over(placement.settings)
    # Weights that are re-ordered for the CPU are not copied, and streamed ones neither.
    copies = placement.regime == "partly in VRAM" and settings.op_offload is not False and not settings.repack
    return FirstGuesses(experts, offload_threshold.in_use() if copies else None, largest)
