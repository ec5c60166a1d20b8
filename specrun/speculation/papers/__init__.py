"""Drafters and acceptance rules of papers, which no automatic choice takes: they are there to be compared."""
