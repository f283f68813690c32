"""Describes and compares heads."""
