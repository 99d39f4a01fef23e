"""Language models: surprisal of words in texts, and log-probabilities of the choices of items.

    load         a Hugging Face checkpoint (hub name, folder, GGUF file), without remote code: a
                 language model, a classifier, or a multiple-choice head
    surprisal    words + model -> words with ``surprisal_bits``
    surprisals   words + models -> words with a column for each model, here or on a cluster
    minimal_pairs  pairs of sentences + models -> which sentence is likelier, by phenomenon
    words_of     a text -> its words, from which the text can be put together again
    evaluate     items + models -> log-probabilities of choices, predictions, graded responses
    fine_tune    items + a pre-trained encoder -> a classifier or a multiple-choice model

Modules with names of their own::

    choices          scores of choices, confidences, and the one grader
    prompts          prompts of language models, labels of classifiers
    encoders         states of a pre-trained encoder
    finetune         a pre-trained encoder learns, with transformers.Trainer
    cache            the store of results on disk

Nothing heavy is imported before a name is used: ``psychlm.lm.load`` brings torch and transformers
with it.
"""

import lazy_loader

# __init__.pyi says which names come from which module
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
