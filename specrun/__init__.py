"""specrun: exact speculative decoding with token trees on llama.cpp, for models that do not fit the GPU."""

__version__ = "0.1.0"
