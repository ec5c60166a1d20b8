"""Acceptance rules: what of a drafted tree the target keeps, and the token after it.

`sample_and_match` follows the target's own samples. The others compare the target's distribution with the draft's:
rules for one node (`by_node` applies them along a tree), block verification for a chain, and typical acceptance, the
only one that is lossy.
"""

from specrun.speculation.papers.block_verification import block_verification
from specrun.speculation.papers.distributions import Probabilities, draw, residual
from specrun.speculation.papers.k_seq import k_seq
from specrun.speculation.papers.multi_step import multi_step
from specrun.speculation.papers.recursive_rejection import recursive_rejection
from specrun.speculation.papers.sequoia_rule import sequoia
from specrun.speculation.papers.speculative_sampling import speculative_sampling
from specrun.speculation.papers.typical import is_typical
from specrun.speculation.papers.walk import (
    AcceptTree,
    NodeProbabilities,
    NodeRule,
    by_node,
    walk,
    walk_block,
    walk_typical,
)
from specrun.speculation.sample_and_match import Accepted, SampleToken, sample_and_match

__all__ = [
    "AcceptTree",
    "Accepted",
    "NodeProbabilities",
    "NodeRule",
    "Probabilities",
    "SampleToken",
    "block_verification",
    "by_node",
    "draw",
    "is_typical",
    "k_seq",
    "multi_step",
    "recursive_rejection",
    "residual",
    "sample_and_match",
    "sequoia",
    "speculative_sampling",
    "walk",
    "walk_block",
    "walk_typical",
]
