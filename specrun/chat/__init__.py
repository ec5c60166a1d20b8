"""The chat loop and its commands, on a terminal or through a pipe."""
