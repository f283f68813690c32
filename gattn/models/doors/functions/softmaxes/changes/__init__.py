"""What functions make of a softmax: the same numbers, fewer of them, or mixtures."""
