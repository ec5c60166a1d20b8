"""Which models there are, and which of them make a pair."""
