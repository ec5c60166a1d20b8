"""llama.cpp's own tools for decoding, built and run for `peers.py`."""
