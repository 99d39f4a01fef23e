"""Running text: readers of corpora, tokens of printed words, word frequencies, corpora
in three parts.

A language model that is to score people's stimuli must learn from text as people write it: curly
quotes become straight, dashes ``--`` between words, and tokens lose the space that tokenisation put
before punctuation. In a :class:`WordCorpus`, rare words of the training part are ``<unk>`` in all
parts, so that perplexities of word-level models compare (Hao et al. 2020, 3.3.1)."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import entropy

from psychlm import data
from psychlm.corpora import novels
from psychlm.corpora.novels import STRAIGHT, bare_words
from psychlm.corpora.reading_times import ucl_sentences
from psychlm.frames import FrameError, check_words

UNKNOWN = "<unk>"
NLTK = ("brown", "movie_reviews", "state_union", "abc", "inaugural", "webtext", "treebank")
# the rest of webtext is bug titles and adverts
SPOKEN = ("grail.txt", "overheard.txt", "pirates.txt", "wine.txt")
OVERLAP_WORDS = 7  # a run this long shared with a test sentence counts as the same sentence
CLITIC = re.compile(r"(?i)(?<=.)(n't|'(?:s|m|d|re|ve|ll))$")
PIECES = re.compile(r"\w+(?:[-'.]\w+)*|[^\w\s]")
SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')]))\s+(?=[\"'(]*[A-Z])")
BLOCK = 50  # paragraphs of a novel that stay together: parts share books, but not pages
HELD_OUT = 0.1  # words of the validation and of the test part, each, relative to the training part
CHAIN_LENGTH = 500  # words for which one Markov chain runs

Sentences = list[list[str]]
Tokenize = Callable[[str], list[str]]


# Tokens of printed words


def plain(word: str) -> list[str]:
    """Split the punctuation at the edges off a printed word.

    >>> plain("(don't")
    ['(', "don't"]"""
    return PIECES.findall(word.replace("’", "'"))


def split_clitics(word: str) -> list[str]:
    """Return tokens as the Penn Treebank separates them.

    >>> split_clitics("don't,"), split_clitics("They’ll")
    (['do', "n't", ','], ['They', "'ll"])"""
    tokens = plain(word)
    return [part for token in tokens for part in CLITIC.sub(r" \1", token).split()]


def ptb(word: str) -> list[str]:
    """Return tokens as in Mikolov's Penn Treebank: lower case, clitics apart, numbers ``N``, no
    punctuation.

    >>> ptb("John's"), ptb("3.5"), ptb("--")
    (['john', "'s"], ['N'], [])"""
    tokens = [token.lower() for token in split_clitics(word) if re.search(r"\w", token)]
    return ["N" if re.fullmatch(r"[\d.,-]*\d[\d.,-]*", token) else token for token in tokens]


def lower_case(word: str) -> list[str]:
    """Return the tokens of a printed word in lower case, clitics and punctuation apart."""
    return [token.lower() for token in split_clitics(word)]


def counts(sentences: Iterable[Sequence[str]]) -> pd.Series:
    """Return how often each token stands in a text, the most frequent first."""
    tokens = [token for sentence in sentences for token in sentence]
    return pd.Series(tokens, dtype=object).value_counts()


def unigram_log_probability(
    words: pd.Series, counted: pd.Series, tokenize: Tokenize = plain
) -> np.ndarray:
    """Return the log-probabilities (nats) of printed words under a unigram model.

    ``ln((c + 1) / (N + V + 1))`` of each token, with N tokens of V types and one more for what was
    never seen (Laplace), added over a word's tokens; NaN for punctuation."""
    tokens = words.reset_index(drop=True).map(tokenize).explode()
    tokens = tokens[tokens.str.contains(r"\w", na=False)]
    seen = tokens.map(counted).fillna(0).to_numpy(dtype=float)
    logs = pd.Series(np.log((seen + 1) / (counted.sum() + len(counted) + 1)), index=tokens.index)
    return logs.groupby(level=0).sum().reindex(range(len(words))).to_numpy()


def word_level_tokens(words: pd.DataFrame, tokenize: Callable[[str], list[str]]) -> pd.DataFrame:
    """Return one row per token that a word-level model (n-gram, LSTM) reads, in reading order.

    ``sentence_id`` says where sentences begin, else each text is one. The result has ``row``
    (position in ``words``), ``token``, ``text`` and ``sentence`` (running numbers)."""
    words = check_words(words)
    text = words.groupby("text_id", sort=False).ngroup().to_numpy()
    keys = ["text_id", "sentence_id"] if "sentence_id" in words.columns else ["text_id"]
    sentence = words.groupby(keys, sort=False).ngroup().to_numpy()
    order = np.lexsort([words["word_id"].to_numpy(), text])
    tokens = words["word"].iloc[order].map(tokenize).to_numpy()
    columns = {"row": order, "token": tokens, "text": text[order], "sentence": sentence[order]}
    table = pd.DataFrame(columns).explode("token").dropna(subset=["token"]).reset_index(drop=True)
    if table.empty:
        raise FrameError(
            f"no word has a token in this style (such as {words['word'].iloc[0]!r}); take another"
        )
    return table


def sum_over_words(
    words: pd.DataFrame, tokens: pd.DataFrame, bits: np.ndarray, unknown: np.ndarray
) -> pd.DataFrame:
    """Return ``words`` with ``surprisal_bits`` summed over tokens (NaN where a word has none),
    ``n_tokens``, and ``n_unknown``, how many of them the model does not know."""
    rows = tokens["row"].to_numpy(dtype=np.int64)
    n = len(words)
    count = np.bincount(rows, minlength=n)
    total = np.where(count > 0, np.bincount(rows, weights=bits, minlength=n), np.nan)
    n_unknown = np.bincount(rows, weights=unknown, minlength=n).astype(np.int64)
    return words.assign(surprisal_bits=total, n_tokens=count, n_unknown=n_unknown)


# Text as people write it


def paragraphs(*, only_novels: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (source, paragraph) over the 20 novels and seven NLTK corpora, in a fixed order."""
    yield from (("novels", paragraph) for paragraph in novels.paragraphs())
    if only_novels:
        return
    for corpus in NLTK:
        with zipfile.ZipFile(data.path(f"lm/nltk/{corpus}")) as archive:
            for member in sorted(archive.namelist()):
                yield from ((corpus, p) for p in _nltk(corpus, member, archive))


def _nltk(corpus: str, member: str, archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield the paragraphs of one file of an NLTK archive, none if it holds no running text."""
    name = member.rsplit("/", 1)[-1]
    if not name or name.isupper() or name.startswith("."):
        return
    if corpus == "webtext" and name not in SPOKEN or corpus == "treebank" and "/raw/" not in member:
        return
    text = io.TextIOWrapper(archive.open(member), encoding="latin-1", newline=None).read()
    if corpus == "brown" and re.fullmatch(r"c[a-r]\d\d", name):
        # lines of word/tag: take the tags off and join the sentences of a paragraph
        for block in re.split(r"\n\s*\n\s*\n", text):
            sentences = [
                " ".join(token.rsplit("/", 1)[0] for token in line.split())
                for line in block.splitlines()
            ]
            if any(sentences):
                yield " ".join(detokenise(sentence) for sentence in sentences if sentence)
    elif corpus == "movie_reviews" and name.endswith(".txt"):
        lines = (detokenise(line) for line in text.translate(STRAIGHT).splitlines() if line.strip())
        # lower-cased sentences get their first capital, and the pronoun I its own
        lines = (re.sub(r"\bi\b(?!\.)", "I", line) for line in lines)
        capital = re.compile(r"^([^a-zA-Z]*)([a-z])")
        yield " ".join(capital.sub(lambda m: m[1] + m[2].upper(), line) for line in lines)
    elif corpus not in ("brown", "movie_reviews"):
        for block in text.split("\n\n" if corpus == "treebank" else "\n"):
            block = re.sub(r"\s+", " ", block.replace(".START", "")).translate(STRAIGHT).strip()
            if block and "<" not in block:
                yield re.sub(r"\s*--+\s*", " -- ", block)


def detokenise(tokens: str) -> str:
    """Put a sentence's space-separated tokens (quotes as `` `` `` and ``''``, or ``"``) into print.

    >>> detokenise("it 's only a movie , is n't it ?")
    "it's only a movie, isn't it?"
    """
    text = f" {tokens} "
    text = re.sub(r" (``|'') ?", lambda m: ' "' if m[1] == "``" else '" ', text)
    text = re.sub(r' " (.*?) " ', r' "\1" ', text)
    text = re.sub(r" ([?!]) (?=\1 )", " ", text)  # Brown doubles them
    text = re.sub(r"([;:]) \1(?= )", r"\1", text)
    closing = r" ([,.;:?!%)\]}]|\.\.\.|n't|'(?:s|m|d|re|ve|ll)\b)(?=[\s\"'),.;:?!])"
    text = re.sub(closing, r"\1", text)  # no space before closing punctuation and clitics
    text = re.sub(r"([(\[{$]) ", r"\1", text)
    return re.sub(r"\s+", " ", re.sub(r"\s*--+\s*", " -- ", text)).strip()


def mark_overlap(
    sentences: Iterable[str], texts: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, str, bool]]:
    """Yield (source, paragraph, clean): paragraphs, and whether they hold none of the sentences.

    A sentence counts as found in a paragraph when a run of seven of its words is there, or all of a
    sentence of four to six words."""
    runs: dict[int, set[tuple[str, ...]]] = {}
    for words in map(bare_words, sentences):
        size = min(len(words), OVERLAP_WORDS)
        if size > 3:
            runs_of_sentence = zip(*(words[i:] for i in range(size)), strict=False)
            runs.setdefault(size, set()).update(runs_of_sentence)
    for source, paragraph in texts:
        words = bare_words(paragraph)
        clean = all(
            runs_of_size.isdisjoint(zip(*(words[i:] for i in range(size)), strict=False))
            for size, runs_of_size in runs.items()
        )
        yield source, paragraph, clean


# Corpora in three parts


@dataclass(frozen=True)
class WordCorpus:
    """A corpus of tokens in three parts."""

    name: str
    train: Sentences  # lists of tokens, unknown ones <unk>; so are the two others
    validation: Sentences
    test: Sentences
    tokenize: Tokenize  # how a printed word becomes this corpus's tokens

    @property
    def n_words(self) -> dict[str, int]:
        """Tokens in each part, the ends of sentences not counted."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: sum(map(len, part)) for name, part in parts.items()}


def read(names: Sequence[str], n_words: int, *, seed: int) -> dict[str, WordCorpus]:
    """Read "novels", "all texts" (also of NLTK), "Penn Treebank" or "WikiText-2".

    ``n_words`` bounds the training text; ``seed`` deals out the first two, where words that stand
    once in the training part are ``<unk>``."""
    benchmarks = {
        "Penn Treebank": ("lm/ptb/ptb.valid", "lm/ptb/ptb.test", ptb),
        "WikiText-2": ("lm/wikitext-2/valid", "lm/wikitext-2/test", split_clitics),
    }
    corpora = {}
    for name in names:
        if name in ("novels", "all texts"):
            corpora[name] = prose(name, n_words, seed=seed)
            continue
        # A line is a sentence. Train on the validation text, of which every tenth line is held out.
        *files, tokenize = benchmarks[name]
        texts = (data.path(file).read_text(encoding="utf-8").splitlines() for file in files)
        lines, test = ([line.split() for line in text if line.split()] for text in texts)
        train = _take((line for i, line in enumerate(lines) if i % 10), n_words)
        corpora[name] = _corpus(name, tokenize, (train, lines[::10], test))
    return corpora


def prose(name: str, n_words: int, *, seed: int) -> WordCorpus:
    """Deal out novels ("novels"), or these and all other running text ("all texts"), in blocks of
    50 paragraphs, without those that share a sentence with the UCL corpus."""
    source = paragraphs(only_novels=name == "novels")
    texts = [text for _, text in source]
    order = np.random.default_rng(seed).permutation(-(-len(texts) // BLOCK))
    mixed = [number for i in order for number in range(i * BLOCK, min((i + 1) * BLOCK, len(texts)))]
    if name == "novels":
        shared = set(data.facts("novels/ucl_overlap")["paragraph"])
        clean = (texts[number] for number in mixed if number not in shared)
    else:
        marked = mark_overlap(ucl_texts(), ((name, texts[number]) for number in mixed))
        clean = (text for _, text, is_clean in marked if is_clean)
    sentences = (sentence for text in clean for sentence in SENTENCE_END.split(text))
    tokens = ([token for word in s.split() for token in lower_case(word)] for s in sentences)
    return _deal(name, tokens, n_words, min_count=2)


def ucl_texts() -> pd.Series:
    """Return the sentences of the UCL corpus; they are on this machine or can be fetched."""
    return ucl_sentences().groupby("text_id")["word"].agg(" ".join)


def ucl_overlap() -> pd.DataFrame:
    """Return the numbers of the novels' paragraphs that share a sentence with the UCL corpus."""
    novels = paragraphs(only_novels=True)
    marked = mark_overlap(ucl_texts(), novels)
    return pd.DataFrame({"paragraph": [i for i, (*_, clean) in enumerate(marked) if not clean]})


def markov(n_words: int, n_types: int, *, seed: int) -> tuple[WordCorpus, float]:
    """Draw a corpus from a Markov chain of ``n_types`` words, and return it with the perplexity
    that no model can beat.

    Successors have probabilities P_i ~ Dirichlet(0.3); per token the entropy of the source is
    sum_i pi_i H(P_i), with pi the chain's stationary distribution."""
    rng = np.random.default_rng(seed)
    # state 0 ends a sentence and begins the next
    chain = rng.dirichlet(np.full(n_types + 1, 0.3), size=n_types + 1)
    steps = []
    state = np.zeros(max(n_words // CHAIN_LENGTH, 10), dtype=np.int64)
    for _ in range(CHAIN_LENGTH):
        above = rng.random(len(state))[:, None] > chain[state].cumsum(axis=1)
        state = above.sum(axis=1).clip(max=n_types)
        steps.append(state)
    words = [f"w{i}" if i else "." for i in np.stack(steps, axis=1).ravel()]
    sentences = (sentence.split() for sentence in " ".join(words).split("."))
    stationary = np.linalg.matrix_power(chain, 1000)[0]
    bits = stationary @ entropy(chain, base=2, axis=1)
    return _deal("markov", sentences, n_words, 1), float(2**bits)


def _deal(name: str, sentences: Iterable[list[str]], n_words: int, min_count: int) -> WordCorpus:
    """Fill test, validation and training part, in this order, with so many words each."""
    rest = filter(None, sentences)
    n_held_out = int(HELD_OUT * n_words)
    test = _take(rest, n_held_out)
    validation = _take(rest, n_held_out)
    return _corpus(name, lower_case, (_take(rest, n_words), validation, test), min_count)


def _take(sentences: Iterable[list[str]], n_words: int) -> Sentences:
    """Take sentences until they have so many words."""
    taken = []
    total = 0
    for sentence in sentences:
        taken.append(sentence)
        total += len(sentence)
        if total >= n_words:
            break
    return taken


def _corpus(
    name: str, tokenize: Tokenize, parts: Sequence[Sentences], min_count: int = 1
) -> WordCorpus:
    """Write ``<unk>`` for what the first part, for training, does not hold ``min_count`` times."""
    counted = counts(parts[0])
    kept = set(counted.index[counted >= min_count])
    train, validation, test = (
        [[token if token in kept else UNKNOWN for token in sentence] for sentence in part]
        for part in parts
    )
    return WordCorpus(name, train, validation, test, tokenize)
