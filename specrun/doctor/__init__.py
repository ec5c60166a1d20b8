"""`specrun doctor`: what this machine and this installation are like, and what would make specrun slow or fail."""
