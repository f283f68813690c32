"""How near estimates of single edges, and of many together, come to exact cuts."""
