"""Classical test theory: difficulty, discrimination, reliability and clusters of items.

Everything starts from a responses frame (persons x items; 0, 1 or NaN where not asked). Missing
responses are handled pairwise: each mean rests on those who answered the item, each covariance or
correlation on those who answered both items, and a person's score is the proportion correct among
the items they answered. With complete responses these are the textbook quantities.

Sources: Lord & Novick (1968), *Statistical Theories of Mental Test Scores*; Cronbach (1951); the
clusters follow Laverghetta et al. (2021), section 5.1.
"""

import lazy_loader

# __init__.pyi says which names come from which module
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
