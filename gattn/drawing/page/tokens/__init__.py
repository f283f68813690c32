"""What a page tells of tokens: spans of them, what was predicted, and numbers of one's own."""
