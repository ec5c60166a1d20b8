"""`specrun verify`: whether texts with speculation are those of plain decoding, or differ by rounding only."""
