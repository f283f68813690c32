"""What analyses read, and what they return."""
