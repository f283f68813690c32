"""What attention adds to the residual stream."""
