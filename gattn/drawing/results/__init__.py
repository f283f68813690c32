"""Pictures of what analyses return."""
