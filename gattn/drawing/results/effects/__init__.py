"""Pictures of what edits change."""
