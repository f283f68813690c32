"""What a survey reads."""
