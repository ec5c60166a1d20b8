"""Acceptance rules and drafters of papers that no automatic choice takes; they are there to be compared.

`sample_and_match` follows the target's own samples. The acceptance rules here compare the target's distribution with
the draft's: rules for one node, which `by_node` applies along a tree; block verification, for chains; and typical
acceptance, the only lossy one. `rules.PaperRule` makes each of them an `AcceptanceRule`, which is all that the rest of
specrun knows of them; `sampled.DrawnDraft` holds what they need to know of a tree that was drawn at random.
"""
