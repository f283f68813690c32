"""Analyses: what the graphs say, one idea per file.

Most take attention (`gattn.analysis.reading.attention.Attention`): a trace, a stack, a head or
arrays, whose tokens have texts if ``tokens=`` gives them. The others take a text and a model, as
`gattn.capture` does. ``heads=`` says which heads are read, ``reduce=`` how they become one, and
``progress=`` whether a progress bar appears on stderr after one second. They return arrays with
named axes, tables and graphs that draw themselves and say what they were computed from
(`gattn.analysis.reading.results`).

A new analysis is a function in a file of its own, a line in ``__init__.pyi``, and one in
``docs/analyses.md`` and ``docs/api/analysis.rst``::

    import torch

    from gattn.analysis.reading.attention import Attention
    from gattn.analysis.reading.layers_of import layers_of
    from gattn.analysis.reading.results import Array


    def received(attention: Attention) -> Array:  # what each token receives from all queries
        layers = layers_of(attention).square()
        values = torch.stack([layers.read(n).sum(-2) for n in range(len(layers))])
        return layers.array(values, layers.axes("layer", "head", "token"), "received")

`gattn.analysis.reading.layers.Layers` has the attention, layer by layer, and makes the result,
whose notes say which attention is missing. A result that is to have a picture of its own is a
subclass of `Table` or `Graph`, named in `gattn.drawing.pictures`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
