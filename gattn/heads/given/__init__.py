"""One's own numbers: edges and sparse matrices as the fields of an attention graph."""
