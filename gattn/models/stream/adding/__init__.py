"""Where attention is added to the residual stream, and what it adds."""
