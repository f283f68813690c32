"""What one run of a module is given, changes, picks and reads."""
