"""Widened mixtures of experts: as many experts as the source has, each of them wider, chosen as the source chooses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specrun.making.widening import MATRICES, Floats, Source, Tensor, Type, read_blocks

from .any_model import AnyWiderModel

EXPERTS = MATRICES[4:]  # each of them is a matrix of every expert
ROUTER = "ffn_gate_inp"


def has_experts(source: Source) -> bool:
    """Whether feed-forward layers are split into experts."""
    return bool("llama.expert_count" in source.fields and source.fields["llama.expert_count"].contents())


class WiderMixture(AnyWiderModel):
    """As `AnyWiderModel`, for a mixture that `scripts/make_mixture.py --from` made. `ff` is the width of an expert."""

    def _all_tensors(self) -> Iterator[Tensor]:
        yield from super()._all_tensors()
        for layer in range(self.target.layers):
            name = f"blk.{layer}.{ROUTER}.weight"
            n_experts = len(self.source.tensors[name].data)
            yield Tensor(name, (n_experts, self.target.embd), Type.F32, lambda name=name: self._router(name))

    def _layer_tensor(self, layer: int, name: str) -> Tensor:
        tensor = super()._layer_tensor(layer, name)
        if name not in EXPERTS:
            return tensor
        full_name = f"blk.{layer}.{name}_exps.weight"
        source = self.source.tensors[full_name]
        n_experts = len(source.data)
        rows, columns = tensor.shape

        def make() -> NDArray[Any]:
            experts = read_blocks(source, self.kind)
            matrices = []
            for real in experts.reshape(n_experts, source.data.shape[1], -1, experts.shape[-1]):
                matrices.append(self._unused(rows, columns, name))
                self._put(matrices[-1], name, real)
            return np.stack(matrices)

        return Tensor(full_name, (n_experts, rows, columns), self.kind, make)

    def _router(self, name: str) -> Floats:
        """The source's, whose scores are those of the source's part of the hidden state."""
        real = self.source.tensors[name].data
        router = np.zeros((len(real), self.target.embd), np.float32)
        router[:, : real.shape[1]] = real
        return router
