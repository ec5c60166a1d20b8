"""The last token tree of an answer as JSON, for who wants to look at it."""

from __future__ import annotations

from typing import Any

from specrun.engine.completion import Completion


def last_tree(completion: Completion) -> dict[str, Any] | None:
    """The tree of the last pass that had one; None if no pass had.

    tokens: the text of each node, the root first. parents: of each node, -1 for the root. path: the nodes that the
    target accepted, the root first.
    """
    drafted = completion.last_drafted
    if drafted is None:
        return None
    tree = drafted.tree
    return {
        "tokens": [completion.token_bytes(int(token)).decode("utf-8", errors="replace") for token in tree.tokens],
        "parents": tree.parents.tolist(),
        "path": [int(node) for node in drafted.accepted.path],
    }
