"""Pictures of one head, and of token graphs."""
