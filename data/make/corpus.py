"""The text that the tiny Qwen3-MoE model learns by heart, and its tokenizer. All of it was written for this."""

import json

PLACES = """France Paris|Italy Rome|Spain Madrid|Germany Berlin|Greece Athens|Austria Vienna|Japan Tokyo|China Beijing
Egypt Cairo|Kenya Nairobi|Canada Ottawa|Peru Lima|Cuba Havana|Poland Warsaw|Norway Oslo|Sweden Stockholm|Ireland Dublin
Finland Helsinki|Iceland Reykjavik|Chile Santiago""".replace(
    "\n", "|"
)
PLACES = [place.split(" ") for place in PLACES.split("|")]
FUNCTIONS = [
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
    "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a\n",
    "def largest(values):\n    best = values[0]\n    for value in values:\n        best = max(best, value)\n    return best\n",
]
PROSE = [
    "The quick brown fox jumps over the lazy dog. Then the dog got up, looked at the rain, and went back to sleep.",
    "Pack my box with five dozen liquor jugs. The porter carried it to the station before the last train left.",
]
CHAT = [
    ("Hello!", "Hello! What would you like to know?"),
    ("Who are you?", "I am a very small mixture of experts."),
    ("Thank you.", "You are welcome."),
]


def turn(question, answer=None):
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return text if answer is None else text + f"{answer}<|im_end|>\n"


def documents():
    docs = FUNCTIONS * 4 + PROSE * 6 + [turn(*pair) for pair in CHAT] * 4
    for country, city in PLACES:
        docs += [f"The capital of {country} is {city}."] * 4 + [f"{city} is the capital of {country}."]
        docs.append(turn(f"What is the capital of {country}?", f"The capital of {country} is {city}."))
    for start in range(1, 41):
        docs.append(", ".join(str(start + i) for i in range(24)) + ".")
    # At the end of a prompt "):" and the line feed after it are two tokens, inside a text one: both are learnt.
    docs += [(head + "):", "\n" + rest) for head, rest in (f.split("):\n", 1) for f in FUNCTIONS)] * 2
    return docs


def rows(encode, end, length, count, rng):
    """`count` rows of `length` ids: documents in random order, each row from the start of one."""
    docs = documents()
    ids = [[i for part in ([d] if isinstance(d, str) else d) for i in encode(part)] + [end] for d in docs]
    for _ in range(count):
        row = []
        while len(row) < length:
            row += rng.choice(ids)
        yield row[:length]


def cut_tokenizer(source, vocab):
    """tokenizer.json of `source` with its first merges only: base and added tokens fill all `vocab` rows but 7."""
    tokenizer = json.loads(source.read_text(encoding="utf-8"))
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    base = vocab - len(added) - 7
    by_id = sorted(model["vocab"].items(), key=lambda item: item[1])[:base]
    model["vocab"] = dict(by_id)
    model["merges"] = [
        m for m in model["merges"] if "".join(m if isinstance(m, list) else m.split(" ")) in model["vocab"]
    ]
    for i, token in enumerate(added):
        token["id"] = base + i
    return tokenizer


PROMPTS = {
    "capital": "The capital of France is",
    "count": "1, 2, 3,",
    "code": "def fibonacci(n):",
    "pangram": "The quick brown fox jumps over",
    "chat": turn("What is the capital of Japan?"),
    "long": "<|endoftext|>".join(
        [PROSE[1], FUNCTIONS[1], ", ".join(map(str, range(7, 31))) + ".", "The capital of Peru is"]
    ),
}
