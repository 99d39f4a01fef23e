"""Run the numbered notebooks, render what they show, and build the page that leads to them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
