"""What tokens add to each other, in the vectors of a live model."""
