"""Artificial crowds: many small models trained as one (Lalor 2020, section 5.2.4)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
