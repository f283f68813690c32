"""What is known of softmaxes, and of the tensors that hold their numbers."""
