"""The options that commands and the Python API share, each group a dataclass."""
