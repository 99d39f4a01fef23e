"""psychlm: do language models find difficult what people find difficult?

Sub-packages, from the lowest layer to the highest. A module imports from its own layer or from
lower ones (``tests/test_layers.py`` checks this). All are used by the papers' own code in
``notebooks/analyses/``, which none of them uses. Names stand here without a leading underscore.

    0  frames data device cluster stats report plots shaded_text   frames, datasets, figures
    0  recipes roles                              original datasets; options of readers
    0  formatting figures parameters              of reports: numbers, tables and sentences; rules
    1  corpora                                    readers of public data
    2  lm ctt irt reading_times probes            language models, test theory, reading times
    2  comparison                                 is A better than B: psychlm.compare
    2  simulate                                   items, responses and responders of known truth
    3  crowds                                     many small models trained at once
    3  model_card model_facts                     the card of a language model; stored results
    4  site                                       run the notebooks and write the HTML reports
    4  terminal doctor                            what commands print; optional dependencies
    5  cli cli_card cli_notebooks                 the command ``psychlm``

``import psychlm`` loads neither torch nor transformers nor pandas.
"""

import lazy_loader

# __init__.pyi says which names come from which module
__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = ["__version__", *_names]
__version__ = "0.1.0"
