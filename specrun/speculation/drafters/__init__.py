"""Drafters, which propose token trees. Each file holds a drafter and the methods that use it."""
