"""ggml's types of weights: their names, and the bytes of their blocks.

gguf has the same numbers, but takes 50 ms to import, as long as everything else that a short run does with a model's
header. So the known types are listed here, and gguf is asked only for a newer type.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GgmlType:
    """name: as ggml has it, e.g. `Q4_K`. block: weights that are packed together. block_bytes: what they take."""

    name: str
    block: int
    block_bytes: int

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of `n` weights; the last block is whole."""
        return -(-n // self.block) * self.block_bytes


# enum ggml_type; the missing numbers belong to types that no file has any more.
KNOWN = {
    0: GgmlType("F32", 1, 4), 1: GgmlType("F16", 1, 2), 28: GgmlType("F64", 1, 8), 30: GgmlType("BF16", 1, 2),
    24: GgmlType("I8", 1, 1), 25: GgmlType("I16", 1, 2), 26: GgmlType("I32", 1, 4), 27: GgmlType("I64", 1, 8),
    2: GgmlType("Q4_0", 32, 18), 3: GgmlType("Q4_1", 32, 20), 6: GgmlType("Q5_0", 32, 22), 7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34), 9: GgmlType("Q8_1", 32, 40), 41: GgmlType("Q1_0", 128, 18),
    10: GgmlType("Q2_K", 256, 84), 11: GgmlType("Q3_K", 256, 110), 12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176), 14: GgmlType("Q6_K", 256, 210), 15: GgmlType("Q8_K", 256, 292),
    16: GgmlType("IQ2_XXS", 256, 66), 17: GgmlType("IQ2_XS", 256, 74), 22: GgmlType("IQ2_S", 256, 82),
    18: GgmlType("IQ3_XXS", 256, 98), 21: GgmlType("IQ3_S", 256, 110), 19: GgmlType("IQ1_S", 256, 50),
    29: GgmlType("IQ1_M", 256, 56), 20: GgmlType("IQ4_NL", 32, 18), 23: GgmlType("IQ4_XS", 256, 136),
    34: GgmlType("TQ1_0", 256, 54), 35: GgmlType("TQ2_0", 256, 66), 39: GgmlType("MXFP4", 32, 17),
    40: GgmlType("NVFP4", 64, 36),
}  # fmt: skip
_BY_NAME = {known.name: known for known in KNOWN.values()}


def numbered(number: int) -> GgmlType:
    """The type with this number in files. Raises ValueError if neither specrun nor gguf knows it."""
    if number in KNOWN:
        return KNOWN[number]
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    newer = GGMLQuantizationType(number)
    return GgmlType(newer.name, *GGML_QUANT_SIZES[newer])


def named(name: str) -> GgmlType:
    """The type with this name, in any case. Raises KeyError if it is not in KNOWN."""
    return _BY_NAME[name.upper()]
