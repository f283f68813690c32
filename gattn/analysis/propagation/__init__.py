"""What passes through all layers."""
