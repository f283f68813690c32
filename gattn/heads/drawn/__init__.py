"""The pictures of heads, stacks and traces, as methods."""
