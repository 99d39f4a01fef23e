"""A WordNet of a few concepts in Princeton's file format (wndb(5WN)), for tests to break."""

from pathlib import Path

PART = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
HEADER = "  1 A little WordNet for tests. WordNet 3.0 Copyright nobody.\n"


def write(folder: Path, concepts: dict[str, dict]) -> Path:
    """Write concepts ({key: {"words", "gloss", "up", "instance_of", "pos"}}) as WordNet files."""
    folder.mkdir(parents=True, exist_ok=True)
    for pos, part in PART.items():
        mine = {key: c for key, c in concepts.items() if c.get("pos", "n") == pos}
        # Offsets have a fixed width, so that lengths are known before they are.
        at, place = {}, len(HEADER.encode())
        for key, concept in mine.items():
            at[key] = place
            place += len(_line(concept, pos, 0, dict.fromkeys(mine, 0)).encode())
        lines = [_line(concept, pos, at[key], at) for key, concept in mine.items()]
        (folder / f"data.{part}").write_text(HEADER + "".join(lines), encoding="utf-8")
        senses: dict[str, list[str]] = {}
        for key, concept in mine.items():
            for word in concept["words"]:
                senses.setdefault(word.lower(), []).append(f"{at[key]:08d}")
        index = [
            f"{word} {pos} {len(offsets)} 0 {len(offsets)} 0 {' '.join(offsets)}  \n"
            for word, offsets in sorted(senses.items())
        ]
        (folder / f"index.{part}").write_text(HEADER + "".join(index), encoding="utf-8")
        (folder / f"{part}.exc").write_text("geese goose\n" if pos == "n" else "", encoding="utf-8")
    return folder


def _line(concept: dict, pos: str, offset: int, at: dict[str, int]) -> str:
    words = concept["words"]
    links = [("@", key) for key in concept.get("up", ())]
    links += [("@i", key) for key in concept.get("instance_of", ())]
    pointers = "".join(f"{symbol} {at[key]:08d} {pos} 0000 " for symbol, key in links)
    named = " ".join(f"{word} 0" for word in words)
    frames = "01 + 08 00 " if pos == "v" else ""
    head = f"{offset:08d} 05 {pos} {len(words):02x} {named} {len(links):03d}"
    return f"{head} {pointers}{frames}| {concept['gloss']}  \n"


# key, words, gloss with an example, what it is a kind of
_BIRDS = [
    ("animal", "animal beast", 'a living creature; "every animal in the wood"', ""),
    ("bird", "bird", 'warm-blooded egg-layer with feathers; "a bird sang"', "animal"),
    ("goose", "goose", 'web-footed swimmer with a long neck; "two geese flew by"', "bird"),
    ("duck", "duck", 'small web-footed swimmer; "a duck quacked"', "bird"),
    ("hawk", "hawk", 'diurnal hunter with short rounded wings; "the hawk circled"', "bird"),
    ("owl", "owl hooter", 'nocturnal hunter with large eyes; "an owl cried"', "bird"),
    ("wren", "wren jenny_wren", 'little brown singer; "the wren nests here"', "bird"),
    ("fish", "fish", 'cold-blooded creature with gills; "the fish bit"', "animal"),
    ("carp", "carp", 'pond dweller with one dorsal fin; "a fat carp"', "fish"),
    ("pike", "pike", 'voracious freshwater hunter; "he caught a pike"', "fish"),
    ("hedwig", "Hedwig", 'a famous snowy messenger; "Hedwig came back"', ""),
    ("hood", "hood owl", 'a cap worn by scholars; "put on the hood"', ""),
]
BIRDS: dict[str, dict] = {
    key: {"words": words.split(), "gloss": gloss, "up": up.split()}
    for key, words, gloss, up in _BIRDS
}
BIRDS["hedwig"]["instance_of"] = ["owl"]
