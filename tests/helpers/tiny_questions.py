"""Random multiple-choice questions for tests."""

import numpy as np
import pandas as pd

WORDS = [f"w{i}" for i in range(60)]


def questions(rng, n, *, choices_give_away=0.0, question_gives_away=False):
    """Random questions of five choices; some right ones may carry a word of their own."""
    texts = rng.choice(WORDS, (n, 6, 5))
    answer = rng.integers(0, 5, n)
    right = texts[np.arange(n), answer + 1]  # a view is no use here: fancy indexing copies
    marked = rng.random(n) < choices_give_away
    right[marked, rng.integers(0, 5, marked.sum())] = "tell"
    if question_gives_away:
        right[:, 0] = texts[:, 0, 0]
    texts[np.arange(n), answer + 1] = right
    return pd.DataFrame(
        {
            "item_id": [f"q{rng.integers(1 << 60)}" for _ in range(n)],
            "prompt": [" ".join(words) for words in texts[:, 0]],
            "choices": [[" ".join(words) for words in row] for row in texts[:, 1:]],
            "answer": answer,
        }
    )
