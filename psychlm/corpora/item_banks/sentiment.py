"""The Stanford Sentiment Treebank (Socher et al. 2013): sentences and phrases of film reviews, two or five degrees."""

from __future__ import annotations

import pandas as pd

from psychlm.corpora.item_banks.sources import Source, finished, lines, numbered
from psychlm.data import DataError

BINARY = ["negative", "positive"]
FINE = ["very negative", "negative", "neutral", "positive", "very positive"]


def sentiment(source: Source, *, fine: bool | None = None) -> pd.DataFrame:
    """Read sentences and their sentiment.

    Parameters
    ----------
    source : str or Path
        Lines of label and sentence (``"sst/stsa.binary.dev"``, ``"sst/stsa.fine.test"``), or a table of ``sentence``
        and ``label`` (GLUE's phrases, ``"sst/sst2_phrases_train"``).
    fine : bool, optional
        Whether labels are five degrees (0 to 4) or two; as their largest says unless given.

    Returns
    -------
    DataFrame
        Items; the choices are :data:`BINARY` or :data:`FINE`.

    Raises
    ------
    DataError
        If a line has no label, or one that is no degree of the scale.
    """
    text = lines(source)
    if text and text[0].split("\t") == ["sentence", "label"]:
        pairs = [line.rsplit("\t", 1)[::-1] for line in text[1:]]
    else:
        pairs = [line.split(" ", 1) for line in text]
    wrong = [
        i
        for i, pair in enumerate(pairs, start=1)
        if len(pair) != 2 or pair[0] not in {"0", "1", "2", "3", "4"}
    ]
    if wrong:
        raise DataError(
            f"line {wrong[0]} of {source} ({len(wrong)} in all) does not give a label from 0 to 4 and a text"
        )
    frame = pd.DataFrame(pairs, columns=["answer", "prompt"]).astype({"answer": int})
    labels = FINE if (frame["answer"].max() > 1 if fine is None else fine) else BINARY
    if frame["answer"].max() >= len(labels):
        raise DataError(
            f"{source} has the label {frame['answer'].max()}, and two degrees are 0 and 1; pass fine=True"
        )
    items = frame.assign(
        item_id=numbered(source, len(frame)),
        prompt=frame["prompt"].str.strip(),
        choices=[labels] * len(frame),
    )
    return finished(items[["item_id", "prompt", "choices", "answer"]])
