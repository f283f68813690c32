"""Knows which sequences a call goes on with."""
