"""Which tokens and edges pictures show."""
