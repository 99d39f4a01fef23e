"""Item response theory: 1PL to 4PL, Rasch, graded and partial-credit models, in one or more groups.

``fit`` estimates items by marginal maximum likelihood, ``IRTFit.score`` persons. A module is
imported when a name of it is first used, and torch only by what needs it.
"""

import lazy_loader

# __init__.pyi says which names come from which module
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
