"""The accelerator of these tests: a GPU if there is one, else the pretend one."""

import torch

if torch.cuda.is_available():
    import gpu as accelerator
else:
    import pretend as accelerator

__all__ = ["accelerator"]
