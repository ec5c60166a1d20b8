"""Turns `--grammar` and `--json-schema` into GBNF grammars. Pure Python."""

from specrun.constraints.grammar_files import read_grammar
from specrun.constraints.json_schema import schema_to_gbnf

__all__ = ["read_grammar", "schema_to_gbnf"]
