"""Words, and trees of them."""
