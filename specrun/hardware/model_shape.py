"""The input of placement: the sizes of the parts of two models, and the memory that is free for them."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.catalog.entries import Entry
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import layer_of
from specrun.catalog.layer_states import kv_bytes_per_token, state_bytes
from specrun.hardware.machine import Device
from specrun.llama_settings import ALL_LAYERS, UNDECIDED, LlamaSettings

_FLOAT_BYTES, _HALF_BYTES = 4, 2
_MASK_BYTES = 6  # of the attention mask for each cell and token: a float32, and a float16 for flash attention
_CELLS_STEP = 256  # llama.cpp rounds the cells of a cache up to a multiple of it
# Assumed of a model of which only the catalog's entry is known.
_FEED_FORWARD = 3.5  # width of a feed-forward layer, or of the experts that a token uses, as a multiple of the model's
_EXPERT_TENSORS = 3  # matrices of all experts of a layer: up, gate and down
_DENSE_SHARE = 0.27  # of the largest matrix of a layer without experts


@dataclass(frozen=True)
class ModelShape:
    """Sizes in bytes; tuples have one value per layer."""

    layers: tuple[int, ...]  # weights without routed experts
    experts: tuple[int, ...]  # weights of the routed experts
    kv: tuple[int, ...]  # KV cache of the whole context, and recurrent states
    embedding: int  # tables that always stay in RAM
    output: int  # output matrix and other weights outside the layers; a tied matrix is a copy that only VRAM needs
    is_tied: bool  # whether the token embedding is also the output matrix
    largest: int  # largest tensor of a layer
    n_vocab: int  # number of tokens
    activations: int  # compute buffer per token of a pass on the CPU, with the work space of its kernels
    gpu_activations: int  # compute buffer per token of a pass on a GPU
    state: int  # hidden state of a token between two layers, which goes from RAM to a GPU

    @classmethod
    def of(cls, file: GgufFile, n_cells: int, settings: LlamaSettings, n_states: int = 1) -> ModelShape:
        """The shape of a model with `n_cells` tokens in its KV cache and `n_states` states in each recurrent layer."""
        n_cells = -(-n_cells // _CELLS_STEP) * _CELLS_STEP
        n_scored, experts = file.n_heads if settings.flash_attn == "off" else 0, (file.n_experts, file.n_experts_used)
        per_token = kv_bytes_per_token(file, settings.type_k or "f16", settings.type_v or "f16")
        return cls(
            layers=tuple(layer - expert for layer, expert in zip(file.layer_bytes, file.expert_bytes, strict=True)),
            experts=file.expert_bytes,
            kv=tuple(n_cells * kv + n_states * state for kv, state in zip(per_token, state_bytes(file), strict=True)),
            embedding=file.embedding_bytes,
            output=file.output_bytes + file.other_bytes,
            is_tied=file.is_tied,
            largest=max((tensor.n_bytes for tensor in file.tensors if layer_of(tensor.name) is not None), default=0),
            n_vocab=file.n_vocab,
            activations=activations(file.n_embd, file.n_ff, n_cells, n_scored),
            gpu_activations=gpu_activations(file.n_embd, file.n_ff, *experts, n_cells, n_scored),
            state=file.n_embd * _FLOAT_BYTES,
        )

    @property
    def n_units(self) -> int:
        """Number of layers plus one for the output, as `--gpu-layers` counts."""
        return len(self.layers) + 1

    @property
    def is_moe(self) -> bool:
        """Whether the model has routed experts."""
        return any(self.experts)

    def unit(self, index: int, n_cpu_moe: int) -> int:
        """Bytes in VRAM of a layer and its KV cache, with experts from `n_cpu_moe` on; `len(layers)` is the output."""
        if index == len(self.layers):
            return self.output
        return self.layers[index] + self.kv[index] + (self.experts[index] if index >= n_cpu_moe else 0)

    def logits(self, n_rows: int) -> int:
        """Bytes of `n_rows` rows of logits."""
        return n_rows * self.n_vocab * _FLOAT_BYTES


def expected_shape(entry: Entry, n_cells: int) -> ModelShape | None:
    """The shape of a model of the catalog whose KV cache holds `n_cells` tokens in f16; None if the catalog says too
    little. Layers are taken to be equal. `tests/hardware/test_model_shape.py` compares it with that of real files.
    """
    shape, n_bytes = entry.shape, entry.expected_bytes
    if shape is None or n_bytes is None or not entry.vocabulary:
        return None
    embedding, output = entry.table_bytes
    in_layers = n_bytes - embedding - (0 if entry.tied else output)
    experts = entry.expert_bytes // shape.layers
    layer = in_layers // shape.layers - experts
    if layer <= 0:
        return None
    largest = experts // _EXPERT_TENSORS if experts else int(layer * _DENSE_SHARE)
    widest = _FEED_FORWARD * shape.width
    return ModelShape(
        layers=(layer,) * shape.layers,
        experts=(experts,) * shape.layers,
        kv=(n_cells * shape.kv // shape.layers,) * shape.layers,
        embedding=embedding,
        output=output,
        is_tied=entry.tied,
        largest=max(largest, output),
        n_vocab=entry.vocabulary,
        activations=activations(shape.width, widest, n_cells),
        gpu_activations=gpu_activations(shape.width, widest, shape.experts, shape.experts_used, n_cells),
        state=shape.width * _FLOAT_BYTES,
    )


def activations(n_embd: float, widest: float, n_cells: int, n_scored: int = 0) -> int:
    """Upper estimate of the bytes per token in the compute buffer; llama.cpp reuses memory between operations.

    For a pass of 512 tokens through 8 B parameters with 4k cells this gives 140 MB; llama.cpp takes less.

    n_embd: width of the model. widest: width of a feed-forward layer, or of the experts that a token uses. n_scored:
    heads whose attention scores are kept, which flash attention avoids.
    """
    n_floats = 4 * n_embd + 3 * widest + 2 * n_scored * n_cells  # scores before and after the softmax
    return int(n_floats * _FLOAT_BYTES + n_cells * _MASK_BYTES)


def gpu_activations(
    n_embd: float, widest: float, n_experts: int, n_experts_used: int, n_cells: int, n_scored: int = 0
) -> int:
    """Bytes per token in the compute buffer of a GPU: what llama.cpp allocates at the widest place of a layer.

    That is the feed-forward layer with the state before and after the norm, or in a mixture the output of each expert
    that a token uses, twice. Without flash attention it may be the scores of all heads. llama.cpp's own numbers are
    within 10 % of these, together with weights and KV cache (`tests/gpu/test_memory.py`). The arguments are those of
    `activations`, and the experts of a layer.
    """
    n_floats = max(3 * widest + 2 * n_embd, 2 * n_embd * n_experts_used + 4 * n_experts)
    mask_bytes = _HALF_BYTES
    if n_scored:
        n_floats = max(n_floats, n_scored * n_cells + 4 * n_embd)
        mask_bytes = _FLOAT_BYTES
    return int(n_floats * _FLOAT_BYTES + n_cells * mask_bytes)


# On every GPU this share of its free memory and these bytes stay free, for drivers, libraries and other programs.
# MARGIN_BYTES also stay free in RAM.
MARGIN_SHARE = 0.05
MARGIN_BYTES = 300_000_000


@dataclass(frozen=True)
class PlacementRequest:
    """Two models, and the memory that is free before they are loaded."""

    target: ModelShape
    draft: ModelShape | None
    gpus: tuple[Device, ...]  # that llama.cpp divides layers among, in its order
    ram_bytes: int  # RAM that can still be allocated
    n_tokens: int  # of the largest pass
    n_rows: int  # rows of logits, the largest number in a pass
    settings: LlamaSettings = UNDECIDED  # that the user decided for the target; kept even if they do not fit
    draft_settings: LlamaSettings = UNDECIDED  # that the user decided for the draft
    states_bytes: int = 0  # in RAM, for the hidden states that a head reads
    margin_bytes: int = 0  # to keep free on each GPU beyond the usual margin

    def budget(self, gpu: int) -> int:
        """Bytes of the GPU with index `gpu` that placement may use."""
        free = self.gpus[gpu].free_bytes
        if self.gpus[gpu].shares_ram:
            n_sharing = sum(one.shares_ram for one in self.gpus)
            free = min(free, max(self.ram_bytes - self._never_on_gpus(), 0) // n_sharing)
        return max(int(free * (1 - MARGIN_SHARE)) - MARGIN_BYTES - self.margin_bytes, 0)

    def _never_on_gpus(self) -> int:
        """Bytes of RAM that are needed beside GPUs which use the RAM as well, so that the other layers can be streamed.

        Streaming takes two layers. Where all of them fit, these two may lie there for good: it is the same memory.
        """
        target = self.target
        layers = (sum(parts) for parts in zip(target.layers, target.experts, strict=True))
        beside = target.activations * self.n_tokens + target.logits(self.n_rows) + sum(target.kv) + self.states_bytes
        return 2 * max(layers, default=0) + target.embedding + beside

    def gpu_logits(self, shape: ModelShape) -> int:
        """Bytes of a pass's logits on a GPU beyond the compute buffer, whose memory they reuse."""
        return max(shape.logits(self.n_rows) - shape.gpu_activations * self.n_tokens, 0)

    def usable_gpus(self) -> list[int]:
        """Indices of the GPUs that llama.cpp may use with the user's split mode."""
        if self.settings.split_mode == "none":
            return [self.settings.main_gpu or 0][: len(self.gpus)]
        return list(range(len(self.gpus)))

    def local_gpus(self) -> list[int]:
        """The indices in `usable_gpus` of GPUs that are in this machine."""
        return [gpu for gpu in self.usable_gpus() if not self.gpus[gpu].is_remote]


def decided(n: int | None, most: int) -> int | None:
    """The number of layers that the user decided, of `most` layers; None if the user did not say."""
    return n if n is None else most if n == ALL_LAYERS else min(n, most)
