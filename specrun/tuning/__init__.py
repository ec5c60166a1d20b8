"""`specrun tune`: measure what passes cost and what is accepted on this machine, and choose the fastest plan."""
