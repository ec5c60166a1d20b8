"""Trained heads as files: which kind a file holds, and which target it can draft for. Headers only are read."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.catalog.entries import does
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import EMBEDDING, OUTPUT
from specrun.catalog.layer_states import cached_heads, slides
from specrun.catalog.pairs import first_difference, read_vocabulary
from specrun.display_text import one_line
from specrun.errors import ModelFileError, PairError
from specrun.locations import file_state
from specrun.speculation.method import HEADS, HeadKind

_EAGLE3_LAYERS = 3  # of the target, whose states it reads
# Tensors of a DSpark head: rows by the token before, and by the token that is drafted.
MARKOV_BEFORE, MARKOV_AFTER = "markov_w1.weight", "markov_w2.weight"
SELECTOR = "selector_hidden.weight"  # a tensor of a DFlash 2 head
_BLOCK, _MOST_BLOCK = 16, 256  # tokens of a DFlash head's block: where its file does not say, and at most


@dataclass(frozen=True)
class Head:
    """A head that a file holds."""

    kind: HeadKind  # how it drafts
    target_layers: tuple[int, ...]  # the target's layers whose states it reads, before that layer; none: the last state
    target_width: int  # floats of a state of the target
    is_own: bool = False  # whether it is in the target's own file
    reads_cache: bool = False  # whether it has no KV cache and reads the target's

    @property
    def name(self) -> str:
        """The kind's name for people."""
        return "Gemma 4 assistant" if self.reads_cache else HEADS[self.kind]


def article(kind: HeadKind) -> str:
    """The article of the kind's name, for people."""
    return "a" if kind == "dflash" else "an"


def head_in(file: GgufFile) -> Head | None:
    """The head of a file that holds nothing else; None for a model. Raises ModelFileError for an unusable head."""
    if _mtp_layers(file) and "blk.0.attn_norm.weight" not in file.by_name:
        return Head("mtp", (), file.n_embd)
    if does("reads_cache", file.architecture):
        return Head("mtp", (), file.number("embedding_length_out"), reads_cache=True)
    if file.architecture not in ("eagle3", "dflash"):
        return None
    layers = file.metadata.get(f"{file.architecture}.target_layers")
    if not isinstance(layers, list) or not layers or not all(isinstance(k, int) for k in layers):
        raise ModelFileError(f"{file.path} is broken: its target_layers are no numbers")
    if file.architecture == "eagle3":
        if len(layers) != _EAGLE3_LAYERS:
            raise ModelFileError(f"{file.path} is broken: its target_layers are not {_EAGLE3_LAYERS} numbers")
        return Head("eagle3", tuple(layers), file.number("target_hidden_size") or file.n_embd)
    fused = file.by_name.get("fc.weight")
    return Head("dflash", tuple(layers), fused.shape[0] // len(layers) if fused and fused.shape else 0)


def block_of(file: GgufFile) -> tuple[int, int, int, bool]:
    """What a DFlash head's file says of its blocks: (tokens of a block, the mask token, the row that gives the token
    after the root, whether a row sees only the rows before it). Raises ModelFileError for impossible values.
    """
    mask, size = file.metadata.get("tokenizer.ggml.mask_token_id"), file.number("block_size", _BLOCK)
    if not isinstance(mask, int) or not 0 <= mask < file.n_vocab:
        raise ModelFileError(f"{file.path} is broken: it names no mask token")
    if not 1 < size <= _MOST_BLOCK:
        raise ModelFileError(f"{file.path} is broken: its blocks have {size} tokens")
    is_dspark = MARKOV_BEFORE in file.by_name
    # A DSpark's first row is already that of the token after the root, unless the file says otherwise.
    first = 0 if is_dspark and file.metadata.get("dflash.sample_from_anchor", True) else 1
    return size, mask, first, bool(file.metadata.get("dflash.attention.causal", False))


def own_head(file: GgufFile) -> Head | None:
    """The MTP layers of a model that llama.cpp can draft with; None if its file has none."""
    has_layers = does("mtp", file.architecture) and _mtp_layers(file) > 0
    return Head("mtp", (), file.n_embd, is_own=True) if has_layers and head_in(file) is None else None


def has_foreign_mtp(file: GgufFile) -> bool:
    """Whether a model's file has MTP layers that llama.cpp cannot draft with, or only with caches of other kinds."""
    return not does("mtp", file.architecture) and _mtp_layers(file) > 0 and head_in(file) is None


def drafting_head(target: GgufFile, draft: GgufFile) -> Head | None:
    """The head that drafts: the target's own if its file is the draft, else the file's; None for a draft model."""
    return own_head(target) if file_state(draft.path) == file_state(target.path) else head_in(draft)


def _mtp_layers(file: GgufFile) -> int:
    """Number of MTP layers in a file, which come last. Some files without them still count them in their metadata."""
    n = file.number("nextn_predict_layers")
    return sum(f"blk.{file.n_layers - 1 - i}.nextn.eh_proj.weight" in file.by_name for i in range(n))


def check_no_head(file: GgufFile) -> None:
    """Raise ModelFileError for a head where a model is expected that can write text."""
    if head := head_in(file):
        what = f"{'a' if head.reads_cache else article(head.kind)} {head.name}, which writes nothing by itself"
        raise ModelFileError(f"{file.path} is {what}; give it as --draft")


def check_head(target: GgufFile, file: GgufFile, head: Head) -> None:
    """Raise PairError if a head cannot draft for this target: llama.cpp would end the process, or draft nonsense."""
    if why := difference_of(target, file, head):
        raise PairError(f"this {head.name} cannot draft for this target: {why}; choose a head that was trained for it")


def difference_of(target: GgufFile, file: GgufFile, head: Head) -> str | None:
    """A clause that says why a head cannot draft for this target; None if it can. file: the head's."""
    return _shape_difference(target, file, head) or first_difference(read_vocabulary(target), read_vocabulary(file))


def _shape_difference(target: GgufFile, file: GgufFile, head: Head) -> str | None:
    """A clause as `difference_of` has it, from sizes and kinds alone."""
    if head.reads_cache:
        if difference := _cache_difference(target, file):
            return difference
    elif head.kind == "mtp":
        if not does("mtp", target.architecture) or file.architecture != target.architecture:
            return one_line(f"its layers are {file.architecture}'s, and the target is {target.architecture}")
    elif not does("layer_inputs", target.architecture):
        return one_line(f"llama.cpp gives no states of the layers of {target.architecture} models")
    if head.target_width != target.n_embd:
        return f"it reads states of {head.target_width} numbers, and the target's have {target.n_embd}"
    n_layers = target.n_computed_layers
    if outside := [layer for layer in head.target_layers if not 0 <= layer < n_layers]:
        return f"it reads the state before layer {outside[0]}, and the target has {n_layers} layers"
    is_alone = head.reads_cache or {EMBEDDING, OUTPUT} <= file.by_name.keys()
    if not is_alone and file.n_embd != target.n_embd:
        return f"it uses the target's embedding or output matrix, but its own states have {file.n_embd} numbers"
    if file.n_vocab != target.n_vocab:
        return f"it has {file.n_vocab} tokens, and the target {target.n_vocab}"
    return None


def _cache_difference(target: GgufFile, file: GgufFile) -> str | None:
    """A clause that says why a head cannot read the target's cache; None if it can. It reads the last layer's, and
    for layers with a window that of the layer before it. llama.cpp does not compare them.
    """
    if not does("gives_cache", target.architecture):
        return one_line(f"it reads the cache of Gemma 4 models, and the target is {target.architecture}")
    last = target.n_layers - 1
    if last < 1 or slides(target, last) or not slides(target, last - 1):
        return "it reads a layer with a window and one without, and the target's last two layers are others"
    cached = cached_heads(target)
    for layer, (n, key, value) in enumerate(cached_heads(file)):
        n_there, *sizes = cached[last - 1 if slides(file, layer) else last]
        if (n, [key, value]) != (n_there, sizes):
            ours, theirs = f"{n} heads of {key} numbers", f"{n_there} of {sizes[0]}"
            return f"its layer {layer} reads {ours} in the target's cache, which has {theirs}"
    return None
