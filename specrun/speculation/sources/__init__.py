"""Draft sources guess the next tokens without a draft model: from this text, other texts or the target's passes."""
