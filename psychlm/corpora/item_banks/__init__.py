"""Item banks as items frames: natural language inference, sentiment, multiple choice.

    nli, semantic_fragments                     pairs of sentences and how the second follows from the first
    glue_diagnostic, single_category            the diagnostic of GLUE, and its items of one category
    sentiment                                   SST: sentences and phrases, two or five degrees
    read_arc, write_arc                         ARC, OpenBookQA, and probes in their layout
    sciq, piqa, social_iqa, hellaswag, abductive_nli
    read                                        any of them, told apart by what the file holds

A source is a dataset's name in ``data/registry.csv``, or a file; ``archive#member`` is a file inside an archive
(``"snli/snli_1.0#snli_1.0_train.jsonl"``). Items that cannot be asked (no gold label, duplicate choices) are left out
and counted in ``items.attrs["left_out"]``. A column ``template`` names how a language model is best asked.
"""

from __future__ import annotations

from psychlm.corpora.item_banks.arc import read_arc, write_arc
from psychlm.corpora.item_banks.choices import abductive_nli, hellaswag, piqa, sciq, social_iqa
from psychlm.corpora.item_banks.diagnostic import glue_diagnostic, single_category
from psychlm.corpora.item_banks.nli import NLI_LABELS, nli, semantic_fragments
from psychlm.corpora.item_banks.sentiment import sentiment
from psychlm.corpora.item_banks.sniffed import read

__all__ = [
    "NLI_LABELS",
    "abductive_nli",
    "glue_diagnostic",
    "hellaswag",
    "nli",
    "piqa",
    "read",
    "read_arc",
    "sciq",
    "semantic_fragments",
    "sentiment",
    "single_category",
    "social_iqa",
    "write_arc",
]
