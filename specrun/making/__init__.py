"""`specrun models make-draft`: makes drafts from a target's own file, measures them and keeps the best."""
