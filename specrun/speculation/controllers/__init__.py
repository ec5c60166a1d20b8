"""Controllers: which plan the next pass follows, and how what was measured decides that."""
