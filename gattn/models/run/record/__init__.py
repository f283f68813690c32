"""What is recorded of each sequence: its layers, tokens and contributions."""
