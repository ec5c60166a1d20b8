"""Draft sources, which need no draft model: they guess the next tokens from the text itself, from other texts or from
earlier passes of the target. They are pure data structures; the drafters make trees of their guesses.
"""

from specrun.speculation.sources.lookahead import NgramPool
from specrun.speculation.sources.ngram import PromptLookup
from specrun.speculation.sources.recycling import TokenRecycling
from specrun.speculation.sources.source import Guess, Source
from specrun.speculation.sources.suffix_array import SuffixArraySource
from specrun.speculation.sources.suffix_automaton import SuffixAutomaton

__all__ = [
    "Guess",
    "NgramPool",
    "PromptLookup",
    "Source",
    "SuffixArraySource",
    "SuffixAutomaton",
    "TokenRecycling",
]
