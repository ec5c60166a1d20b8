"""Acceptance rules and drafters of papers that no automatic choice takes; they are there to be compared.

`sample_and_match` follows the target's own samples. The acceptance rules here compare the target's distribution with
the draft's: rules for one node, which `by_node` applies along a tree; block verification, for chains; and typical
acceptance, the only lossy one.
"""

from specrun.speculation.papers.k_seq import k_seq
from specrun.speculation.papers.rejection import multi_step, recursive_rejection, sequoia, speculative_sampling
from specrun.speculation.papers.walk import AcceptTree, by_node, walk_block, walk_typical

__all__ = [
    "AcceptTree",
    "by_node",
    "k_seq",
    "multi_step",
    "recursive_rejection",
    "sequoia",
    "speculative_sampling",
    "walk_block",
    "walk_typical",
]
