"""How pictures look and are saved: style sheets, and figures whose files keep text as text."""
