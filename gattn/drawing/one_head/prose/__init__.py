"""Pictures of the text itself."""
