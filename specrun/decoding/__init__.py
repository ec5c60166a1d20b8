"""How a text is written."""
