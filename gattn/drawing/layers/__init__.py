"""Pictures of layers, one above the other; `gattn.drawing` says what their arguments mean."""
