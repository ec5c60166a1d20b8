"""How a text is made: load a pair, decode and accept tokens, hold the result as a completion or a session."""
