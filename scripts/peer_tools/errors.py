"""What can go wrong outside this code."""


class PeerError(Exception):
    """Something that ends the comparison; the message is one line."""


class ToolError(Exception):
    """A tool that failed with one of its settings; the others can go on."""
