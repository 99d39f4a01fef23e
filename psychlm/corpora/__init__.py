"""Readers of public data: reading times, responses, item banks, text."""

import lazy_loader

# __init__.pyi says which names come from which module
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
