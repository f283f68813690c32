"""What the dimensions of attention calls mean: layouts, and the plan that holds them."""
