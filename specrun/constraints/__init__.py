"""Turns `--grammar` and `--json-schema` into GBNF grammars, and bounds the schemas of strangers. Pure Python."""

from specrun.constraints.grammar_files import read_grammar
from specrun.constraints.json_schema import property_rules, schema_rules, schema_to_gbnf
from specrun.constraints.readings import check_readings
from specrun.constraints.references import pointed_at
from specrun.constraints.rules import Work, counted, grammar_text, json_literal
from specrun.constraints.scalars import lengths

__all__ = [
    "Work",
    "check_readings",
    "counted",
    "grammar_text",
    "json_literal",
    "lengths",
    "pointed_at",
    "property_rules",
    "read_grammar",
    "schema_rules",
    "schema_to_gbnf",
]
