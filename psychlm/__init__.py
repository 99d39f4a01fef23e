"""psychlm: do language models find difficult what people find difficult?

A map of the house. Imports go down this list of floors, never up (``tests/test_layers.py`` enforces it):

    4  cli                     the command ``psychlm``
    3  notebooks               run the numbered notebooks, render HTML, build the index
    3  doctor                  which optional parts are on this machine, and what each adds
    2  lm                      models that read text and answer items
    2  ctt  screening          classical test theory; which participants to keep
    2  irt                     item response theory on torch
    2  reading                 reading-time models
    2  confidence              how sure of its choice a model is, and when it should not be
    1  text                    where words, items and responses come from
    0  frames                  the contracts of the frames that flow through the house
    0  data  files             dataset name -> verified local path; published tables; files written whole
    0  stats  simulate         intervals and correlations; data from known parameters
    0  report  plots  figures  numbers beside the published ones; tidy frame + axes -> axes; a figure's numbers

Nothing happens at import: neither torch nor transformers is loaded until a room that needs it is entered.
"""

__version__ = "0.1.0"
