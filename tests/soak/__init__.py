"""Long runs in random order, whose short forms are tests: see `scripts/soak` and docs/reliability.md."""
