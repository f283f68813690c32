"""What kernels on an accelerator are told: a call's score and its graph, as a few tensors."""
