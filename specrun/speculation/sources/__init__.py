"""Draft sources that need no draft model: what could follow a text, known from the text itself, from others, or from
what the target wrote before. Pure data structures; how their guesses become a tree is the drafters' business.
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
