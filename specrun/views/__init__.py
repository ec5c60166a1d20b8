"""Everything that is drawn for people, with rich."""
