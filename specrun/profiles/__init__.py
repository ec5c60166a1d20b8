"""Profiles: what `specrun tune` measured of a pair on this machine, and where it is kept."""
