"""Draft sources, which need no draft model: they guess the next tokens from the text itself, from other texts or from
earlier passes of the target. They are pure data structures; the drafters make trees of their guesses.
"""
