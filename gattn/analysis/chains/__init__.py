"""Heads as Markov chains and as networks."""
