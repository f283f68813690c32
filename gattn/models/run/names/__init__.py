"""Names the tokens of what ran: as a caller asks for, as the model does, or as patches."""
