"""How much longer a mixture's pass takes with every further token, before such passes were run.

A pass reads the experts that any of its tokens chooses. If n tokens choose k of E experts each, independently, they
choose E (1 - (1 - k/E)^n) of them on average. Passes grow about so (docs/benchmarks/mixtures.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specrun.speculation.planning.costs import Milliseconds


@dataclass(frozen=True)
class ExpertGrowth:
    """The experts of a mixture, and what they cost.

    n_experts, n_used: of a layer, and those that a token uses.
    share: the share of a plain pass's time in which experts are read, between 0 and 1.
    """

    n_experts: int
    n_used: int
    share: float

    def experts(self, n: int) -> float:
        """The experts of a layer that a pass over `n` tokens is expected to read."""
        return float(self.n_experts * (1 - (1 - self.n_used / self.n_experts) ** n))

    def row(self, largest: int) -> Milliseconds:
        """float64[largest + 1]: the time of a pass over n tokens, relative to one over a single token.

        What the pass reads counts alone, as where it waits for memory.
        """
        left = 1 - self.n_used / self.n_experts
        read = self.n_experts / self.n_used * (1 - left ** np.arange(largest + 1))
        return np.asarray(1 - self.share + self.share * read)
