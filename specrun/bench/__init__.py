"""Measuring plans against plain decoding on the user's own pair."""
