"""What a survey keeps on the disk."""
