"""Pictures of where tokens lie: over an image, over seconds, on a layout."""
