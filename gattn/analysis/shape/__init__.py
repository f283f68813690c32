"""The shape of heads: spectra, ranks, topology, templates."""
