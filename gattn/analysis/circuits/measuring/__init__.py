"""How circuits are searched and measured, whatever their units are."""
