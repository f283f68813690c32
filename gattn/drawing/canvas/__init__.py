"""What every picture is made of: axes, colours, labels, lines."""
