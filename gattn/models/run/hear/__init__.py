"""What heads read of the residual stream without some of its parts, while a model runs."""
