"""What edits change in a model's answer."""
