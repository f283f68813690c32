"""Plain tensors, whatever they stand for: products over edges, and gradients in little memory."""
