"""The words that helps, reports and documents use, one for one thing."""

from __future__ import annotations

GLOSSARY = {
    "target": "the large model whose text you get",
    "draft": "a small model, or a trained head, that proposes what comes next",
    "draft source": "what drafts without a model: the text itself, a datastore",
    "pair": "a target and its draft, which have the same tokenizer",
    "pass": "one run of the target, over one token or over many",
    "token tree": "the likely continuations that one pass checks",
    "budget, depth": "most nodes of a tree; most drafted tokens on one of its paths",
    "plan": "who drafts, and how large the tree is; off is plain decoding",
    "profile": "what `specrun tune` measured here, which chooses the plan",
    "streamed": "read from disk in every pass, where memory has no room",
}
