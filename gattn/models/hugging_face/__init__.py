"""What calls of transformers models are given: arguments, caches, images, steps of `generate`."""
