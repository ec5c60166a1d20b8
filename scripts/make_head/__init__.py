"""`python -m scripts.make_head`: an EAGLE-3 head that learns from what its target writes.

Texts and the target's states are gathered with llama.cpp (`gathering`, `records`), the head learns them with PyTorch
(`network`, `start`, `losses`, `schedule`, `training`), and `export` writes it. Only these four, and `making` while it
trains, import torch.
"""
