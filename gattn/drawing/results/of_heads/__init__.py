"""Pictures of tables of heads."""
