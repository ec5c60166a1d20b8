"""Loading a draft: a small model of the target's tokenizer or another, or a head that was trained for this target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from specrun.catalog.heads import SELECTOR, Head, article, block_of, check_head, drafting_head
from specrun.catalog.pairs import LEAST_SHARE, SharedTokens, first_difference, read_vocabulary, share_of, what_is_shared
from specrun.decoding import calibration_texts
from specrun.errors import LlamaError, PairError
from specrun.llama import AnyDraft, AnyHead, DraftContext, LlamaModel, RecurrentDraft, TargetContext
from specrun.llama.context import ContextConfig, HeadSetup, LlamaContext
from specrun.llama.draft_tokens import OtherTokens, SameTokens
from specrun.llama.facts.relied_on import ARCHITECTURES, HIDDEN_STATES, why_not
from specrun.llama.heads import hidden_states
from specrun.llama.heads.assistant import AssistantDraft
from specrun.llama.heads.dflash import Block, BlockDraft, SelectorPart, markov_part
from specrun.llama.heads.head_draft import HeadDraft
from specrun.llama_settings import LlamaSettings
from specrun.loading.default_settings import attention_of
from specrun.loading.placing import Here, head_config
from specrun.loading.run_options import KeptStates, RunOptions, states_of_draft
from specrun.speculation.method import HEADS, Plan


def checked_head(options: RunOptions, here: Here) -> Head | None:
    """The head that will draft, by the headers of the files; None for a draft model, or where nothing drafts.

    Raises ModelFileError, PairError for a head of another target or another kind than the method asks for, and
    LlamaError if this build of llama.cpp cannot run heads.
    """
    target, file = here.target, here.draft
    if not options.drafts or file is None:
        return None
    head = drafting_head(target, file)
    wanted = next((plan.method.head for plan in options.plans if plan.method.head), None)
    if wanted and (head is None or head.kind != wanted):
        what = f"{article(wanted)} {HEADS[wanted]}"
        raise PairError(f"--method {wanted} needs {what} as --draft, and {file.path.name} is none")
    if head:
        check_heads(options.settings)
        if not head.is_own:
            check_head(target, file, head)
    return head


def check_heads(settings: LlamaSettings) -> None:
    """Raise LlamaError if this build of llama.cpp cannot run heads, or gives no hidden states of a target."""
    hidden_states.functions()  # this build may lack some
    for fact in (HIDDEN_STATES, ARCHITECTURES):
        if why := why_not(fact, settings):
            raise LlamaError(fact.notice(why))


def other_tokens(
    target: LlamaModel, draft: LlamaModel, plans: Sequence[Plan], notices: list[str]
) -> SharedTokens | None:
    """What a draft with another tokenizer shares with the target, which `notices` get; None for one with the same.

    Raises PairError if that is too little for a draft, or if a plan compares what both predict.
    """
    ours, theirs = (read_vocabulary(model.file) for model in (target, draft))
    difference = first_difference(ours, theirs)
    if difference is None:
        return None
    if compares := next((plan.method.name for plan in plans if plan.method.rule), None):
        why = f"--method {compares} compares what target and draft predict, which takes the same tokenizer"
        raise PairError(f"{why}, but {difference}; choose a draft of the same family or another --method")
    shared = SharedTokens(ours, theirs)
    share = share_of(ours, theirs, calibration_texts.together("calibrate", "validate"))
    if share < LEAST_SHARE:
        raise PairError(f"this draft would not pay: it has {what_is_shared(share)}; choose a draft of the same family")
    notices.append(f"the draft has {what_is_shared(share)}")
    return shared


def make_drafts(
    model: LlamaModel,
    head: Head | None,
    shared: SharedTokens | None,
    targets: Sequence[TargetContext],
    plans: Sequence[Plan],
    settings: LlamaSettings,
    configured: Callable[[LlamaModel, LlamaSettings, KeptStates | None], ContextConfig],
    resources: ExitStack,
) -> list[AnyDraft]:
    """The draft with its context, which `resources` frees: one for each of the texts that share the target's context.

    A head, and a draft with recurrent states, drafts for the first text only. For a head, the targets keep hidden
    states of all texts from now on, which may go on as the first. shared: of a draft with another tokenizer. plans:
    those that will run. configured: gives the size of a context.
    """
    target = targets[0]
    n_vocab = min(target.n_vocab, model.n_vocab)
    if not settings.gpu_layers and not (head and head.reads_cache):
        settings = settings.over(attention_of(model.file, settings, len(targets)))
    if head:
        config = head_config(configured(model, settings, None), plans)
        deepest = max(plan.depth for plan in plans)
        draft = _make_head(model, head, target, config, n_vocab, deepest, resources)
        target.states = draft.states
        for other in targets[1:]:
            other.states = draft.states.of_another_text()
        return [draft]
    config = configured(model, settings, states_of_draft(model.file))
    context = resources.enter_context(LlamaContext(model, config))
    config = context.config
    # Its texts may have more tokens than the target's, and those of all texts have to fit.
    n_most = max(config.n_ctx - config.n_outputs, config.n_ctx // 2) // max(len(config.slots), 1)

    def vocabulary() -> SameTokens:
        return OtherTokens(shared, n_most) if shared else SameTokens(n_vocab)

    if model.is_recurrent:
        return [RecurrentDraft(context, vocabulary())]
    leaves = config.slots or (config.n_seq_max,)
    ends = np.cumsum(leaves).tolist()
    slots = [DraftContext(context, vocabulary(), range(end - n, end)) for n, end in zip(leaves, ends, strict=True)]
    for slot in slots:
        slot.others = [other for other in slots if other is not slot]
    return [*slots]


def _make_head(
    model: LlamaModel,
    head: Head,
    target: TargetContext,
    config: ContextConfig,
    n_vocab: int,
    deepest: int,
    resources: ExitStack,
) -> AnyHead:
    """deepest: drafted tokens on a path, at most. A block is no longer than that, as in llama.cpp's own tools."""
    draft: AnyHead
    if head.kind == "dflash":
        whole = Block(*block_of(model.file))
        block = replace(whole, size=min(whole.size, whole.first + max(deepest, 1)))
        of_block = replace(config, n_seq_max=1, n_batch=max(config.n_batch, block.size), n_outputs=block.size)
        blocks = resources.enter_context(LlamaContext(model, of_block, head=HeadSetup(target.context, 0)))
        n_candidates = model.file.number("selector_top_k") if SELECTOR in model.file.by_name else 0
        pairs = SelectorPart(blocks, n_candidates) if n_candidates else markov_part(model.file)
        draft = BlockDraft(blocks, target.context, head.target_layers, n_vocab, block, pairs)
    elif head.reads_cache:
        # It takes what is in the target's cache for what it is.
        of_cache = target.context.config.settings
        types = {name: getattr(of_cache, name) for name in ("flash_attn", "type_k", "type_v")}
        settings = replace(config.settings, **types)
        config = replace(config, n_ctx=target.context.config.n_ctx, n_seq_max=1, settings=settings)
        setup = HeadSetup(target.context, model.n_embd_out, shares_cells=True)
        context = resources.enter_context(LlamaContext(model, config, head=setup))
        draft = AssistantDraft(context, setup, target, n_vocab)
    else:
        is_mtp = head.kind == "mtp"
        setup = HeadSetup(target.context, model.n_embd_out if is_mtp else model.n_embd, is_mtp)
        context = resources.enter_context(LlamaContext(model, config, head=setup))
        draft = HeadDraft(context, setup, head.target_layers, n_vocab)
    return draft
