"""Acceptance rules: what of a drafted tree the target keeps, and the token after it."""

from specrun.speculation.acceptance.match import Accepted, SampleToken, sample_and_match

__all__ = ["Accepted", "SampleToken", "sample_and_match"]
