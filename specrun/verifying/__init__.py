"""`specrun verify`: whether texts with speculation equal plain decoding's, or differ by rounding only."""
