"""gattn compared with its peers: `python -m benchmarks` from the root of the repository."""
