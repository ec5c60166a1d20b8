"""`specrun models make-draft`: drafts made from a target's own file, measured, and the best one kept."""
