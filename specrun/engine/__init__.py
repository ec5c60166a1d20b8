"""Writing text: loading a pair, the decode loop, completions and sessions."""
