"""Pictures of where tokens lie: over seconds, and on a layout."""
