"""Live Hugging Face models: load by name, capture, edit; the embedded model lives here."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
