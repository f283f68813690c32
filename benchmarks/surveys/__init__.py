"""What a survey costs: `python -m benchmarks.surveys` from the root of the repository."""
