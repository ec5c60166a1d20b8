"""Parts of the script that widens a GGUF model without changing what it computes (docs/widening.md)."""
