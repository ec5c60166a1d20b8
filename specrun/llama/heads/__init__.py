"""Trained heads: small models that draft from the target's hidden states, in a context beside the target's."""
