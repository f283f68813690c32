"""Pictures of many heads."""
