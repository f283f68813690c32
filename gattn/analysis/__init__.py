"""Analyses: what the graphs say, one idea a file.

They take a trace, a stack, a head or arrays of attention
(`gattn.analysis.reading.layers.Attention`), or a text and a model, and return arrays with named
axes, tables and graphs that draw themselves and say what they were computed from
(`gattn.analysis.reading.results`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
