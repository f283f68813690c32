"""Draws command lines at random: good values, and those that break parsers and consoles."""

import json
import os
from pathlib import Path

HUGE = "9" * 5000
LONG = {
    "HUGE": HUGE,
    "LONG": "x" * 100_000,
    "WORDS": "word " * 20_000,
    "PATH": "x" * 5000,
    "NAME": "x" * 300,
    "ZEROS": "0," * 3000 + "0",
    "HEADS": ",".join(["1.1"] * 3000),
    "BRACKETS": "(" * 5000,
}
"""What `pools.json` writes as ``{HUGE}``."""


def _long(value):
    for name, text in LONG.items():
        value = value.replace(f"{{{name}}}", text)
    return value


POOLS = {
    name: [_long(value) for value in values]
    for name, values in json.loads(Path(__file__).with_name("pools.json").read_text()).items()
}
TEXTS, WHOLE, FLOATS, PLACES = (POOLS[n] for n in ("texts", "whole", "floats", "places"))
NAMES, KEEPS, HEADS, REDUCED = (POOLS[n] for n in ("names", "keeps", "heads", "reduced"))
SCORES, TOKENS, MODELS, QUERIES = (POOLS[n] for n in ("scores", "tokens", "models", "queries"))
SQL_SCORES, FOLDERS, INPUTS = (POOLS[n] for n in ("sql_scores", "folders", "inputs"))
STEMS, OUTPUTS = POOLS["stems"], POOLS["outputs"]
TEXT = TEXTS[0]
SUFFIXES = [".svg", ".png", ".pdf", ".html", ".csv", ".gattn", ".json", ".graphml", ".gexf", ".dot"]
SUFFIXES += [".parquet", ".SVG", ".gv", ".htm"]

CAPTURE = {"--layer": WHOLE, "--head": WHOLE, "--keep": KEEPS, "--model": MODELS}
ORDER = {"--heads": HEADS, "--sort": SCORES, "--label": SCORES}
EDITS = {
    "--cut": PLACES,
    "--scale": "factor",
    "--swap": "named",
    "--normalizer": "named",
    "--restrict": "named",
    "--no-renormalize": None,
}
SURVEY = {
    "--keep": KEEPS,
    "--analyses": ["heads", "mixing,ranks", "", "nosuch", ",", "\udcff", HUGE],
    "--analyse": ["all", "kept", "none", ""],
    "--layers": [*WHOLE, "0-99999999999", f"0-{HUGE}", "3-1"],
    "--heads": [*WHOLE, "0-99999999999", f"0-{HUGE}", "3-1"],
    "--scores": None,
    "--contributions": ["output", "value", "both", ""],
    "--column": ["text", "", "nosuch", "\x00", "\udcff"],
    "--limit": WHOLE,
    "--sample": WHOLE,
    "--seed": WHOLE,
    "--most-tokens": WHOLE,
    "--workers": WHOLE,
    "--num-gpus": FLOATS,
    "--model": MODELS,
}
FLOW = {"--query": TOKENS, "--heads": REDUCED, "--residual": FLOATS, "--model": MODELS}
EFFECT = {
    **EDITS,
    "--together": None,
    "--each-head": None,
    "--metric": ["kl", "probability", "logit_difference", "loss", "accuracy", ""],
    "--position": TOKENS,
    "--target": TOKENS,
    "--other": TOKENS,
    "--model": MODELS,
}
CIRCUIT = {
    "--metric": ["kl", "probability", "logit_difference", "accuracy", ""],
    "--ablation": ["zero", "mean", "a dog", ""],
    "--units": ["edges", "heads", "tokens", "pairs", "words", ""],
    "--keep": FLOATS,
    "--seconds": FLOATS,
    "--max-edges": WHOLE,
    "--position": TOKENS,
    "--target": TOKENS,
    "--other": TOKENS,
    "--model": MODELS,
}
WHY = {
    "--layer": WHOLE,
    "--head": WHOLE,
    "--query": TOKENS,
    "--key": TOKENS,
    "--contrast": [*TOKENS, "mean"],
    "--split": HEADS,
    "--paths": None,
    "--stack": ["decoder", "encoder", ""],
    "--model": MODELS,
}
LAYOUTS = {"--layout": ["arcs", "columns", "circle", "matrix", "spring", ""]}
GENERATE = {"--generate": [n for n in WHOLE if n != "99"]}
OPTIONS = {
    "draw": CAPTURE | ORDER | LAYOUTS,
    "view": CAPTURE | EDITS | GENERATE | {"--no-open": None},
    "heads": CAPTURE | {"--all": None},
    "export": CAPTURE,
    "compare": CAPTURE | EDITS | ORDER | {"--with": MODELS},
    "effect": EFFECT,
    "circuit": CIRCUIT,
    "routes": {"--position": TOKENS, "--threshold": FLOATS, "--model": MODELS},
    "flow": FLOW,
    "why": WHY,
    "tokens": {"--model": MODELS},
    "survey": SURVEY | EDITS,
    "query": {},
    "statistics": {"--with": FOLDERS},
    "models": {},
}
ODD = [[], ["--help"], ["--version"], ["--nosuch"], [""], ["\x00"], ["\udcff"], ["draw", "--help"]]
ODD += [["nosuch"], ["dra"], ["--"], ["draw", "a", "b"], ["draw", "-o"], ["effect", TEXT, "--cut"]]


def lay_out(folder: Path) -> None:
    """Put into a folder what command lines name."""
    (folder / "folder").mkdir()
    (folder / "locked").mkdir(mode=0o500)
    (folder / "texts.txt").write_text("The dog chased the cat.\nThe cat slept.\n\n")
    (folder / "empty.txt").write_text("")
    (folder / "bad.jsonl").write_bytes(b'{"text": "a"}\n{"text"\n\xff\xfe\n')
    # A pipe stands for a device: a fault that replaces it does no harm.
    os.mkfifo(folder / "pipe")
    for suffix in SUFFIXES:
        (folder / f"directory{suffix}").mkdir()
        os.symlink(f"loop{suffix}", folder / f"loop{suffix}")
        os.symlink("pipe", folder / f"pipe{suffix}")


def command_line(random) -> list[str]:
    """Draw one command line."""
    if random.random() < 0.04:
        return random.choice(ODD)
    command = random.choice(list(OPTIONS))
    options = list(OPTIONS[command])
    chosen = random.sample(options, k=min(len(options), random.choice([0, 1, 1, 1, 2, 2, 3])))
    if chosen and random.random() < 0.1:
        chosen.append(random.choice(chosen))
    words = [*_positional(command, random)]
    if command == "view" and random.random() < 0.97:
        words.append("--no-open")
    for option in chosen:
        words += _written(option, OPTIONS[command][option], random)
    if random.random() < 0.5 or command in ("export", "survey"):
        words += ["-o", _output(command, random)]
    if command == "survey" and random.random() < 0.05:
        words += ["--ray"]
    return [command, *words]


def _pick(values, random) -> str:
    """Draw a value; those at the front are good, and drawn more often."""
    return random.choice(values[:3] if random.random() < 0.6 else values)


def _positional(command: str, random) -> list[str]:
    if command == "models":
        return []
    if command == "survey":
        return [_pick(INPUTS, random) for _ in range(random.choice([1, 1, 1, 2]))]
    if command == "query":
        return [_pick(FOLDERS, random), _pick(QUERIES, random)]
    if command == "statistics":
        return [_pick(FOLDERS, random), _pick(SQL_SCORES, random)]
    return [_pick(TEXTS, random)]


def _written(option: str, values, random) -> list[str]:
    if values is None:
        return [option]
    if values == "factor":
        value = f"{_pick(FLOATS, random)}:{_pick(PLACES, random)}"
    elif values == "named":
        value = random.choice(NAMES)
        value += f":{_pick([*WHOLE, *FLOATS], random)}" if random.random() < 0.6 else ""
        value += f"@{_pick(PLACES, random)}" if random.random() < 0.3 else ""
    else:
        value = _pick(values, random)
    return [f"{option}={value}"] if random.random() < 0.7 else [option, value]


FITTING = {
    "draw": SUFFIXES[:3],
    "compare": SUFFIXES[:3],
    "view": [".html"],
    "heads": [".csv", ".svg"],
    "flow": [".csv", ".svg"],
    "why": [".csv", ".svg", ".html"],
    "effect": [".csv", ".svg"],
    "statistics": [".csv", ".svg"],
    "query": [".csv", ".json", ".parquet"],
    "circuit": [".svg", ".html", ".json", ".graphml", ".csv", ".dot", ".gexf"],
    "routes": [".svg", ".json", ".graphml", ".csv", ".dot", ".gexf"],
    "export": [".gattn", ".json", ".graphml", ".gexf", ".dot", ".csv"],
}


def _output(command: str, random) -> str:
    if command == "survey":
        return random.choice(["made", "made", *STEMS, *FOLDERS[1:]])
    if random.random() < 0.1:
        return random.choice(OUTPUTS)
    return _pick(STEMS, random) + random.choice(FITTING.get(command, SUFFIXES))
