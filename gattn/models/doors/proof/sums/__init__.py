"""What code makes of exponentials and their sums, beside a softmax."""
