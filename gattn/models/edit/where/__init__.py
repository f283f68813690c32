"""Where an edit applies: which layers and heads, and which tokens, it names."""
