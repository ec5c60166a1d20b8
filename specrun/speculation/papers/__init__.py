"""Acceptance rules and drafters of papers that no automatic choice takes; they are there to be compared."""
