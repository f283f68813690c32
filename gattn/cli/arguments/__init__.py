"""What the arguments of the command line ask for."""
