"""The doors through which attention is seen: transformers' interface, and softmaxes of scores."""
