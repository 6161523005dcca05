"""A federated client that trains a small GPT on eight sentences, and the audit of the gradient that it sends.

    python federated_text.py
    remanence audit update federated_text:Net --before before.pt --gradient gradient.pt \
        --data batch.npz --held-out others.npz --vocabulary vocabulary.json --out text-audit
    remanence audit update federated_text:Net --before before.pt --gradient gradient.pt \
        --data batch.npz --held-out others.npz --vocabulary vocabulary.json --out text-sweep \
        --sweep clients=1,2,5 noise=0,0.1,1,10 bits=8

The sentences are those of Python's own reference. The network is written here, with the names of GPT-2; that of a
library with these names is audited in the same way.
"""

import json
import re
from collections import Counter
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

WORDS, LENGTH, WIDTH, HEADS = 4000, 16, 256, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.c_attn(x).split(WIDTH, dim=-1)
        )
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(WIDTH, 4 * WIDTH), "c_proj": nn.Linear(4 * WIDTH, WIDTH)})

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](nn.functional.gelu(self.mlp["c_fc"](self.ln_2(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h, self.ln_f = nn.ModuleList([Block(), Block()]), nn.LayerNorm(WIDTH)
        self.config = type("Config", (), {"n_head": HEADS})
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


def sentences():
    """Token ids of the first 16 words and signs of each sentence, and the words, the most frequent first."""
    text = " ".join(" ".join(text.split()) for _, text in sorted(topics.items()))
    split = [re.findall(r"\w+|[^\w\s]", each.lower())[:LENGTH] for each in re.split(r"(?<=[.!?]) (?=[A-Z])", text)]
    split = [words for words in split if len(words) == LENGTH]
    counts = Counter(word for words in split for word in words)
    vocabulary = sorted(counts, key=lambda word: (-counts[word], word))[:WORDS]
    number = {word: i for i, word in enumerate(vocabulary)}
    rows = {tuple(number[word] for word in words) for words in split if all(word in number for word in words)}
    return np.array(sorted(rows)), vocabulary


def main():
    torch.manual_seed(0)
    ids, vocabulary = sentences()
    ids = ids[np.random.default_rng(0).permutation(len(ids))]
    np.savez("batch.npz", input_ids=ids[:8])
    np.savez("others.npz", input_ids=ids[8:])
    with open("vocabulary.json", "w", encoding="utf-8") as file:
        json.dump(vocabulary, file)
    net, batch = Net(), torch.tensor(ids[:8])
    cross_entropy(net(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten()).backward()
    torch.save(net.state_dict(), "before.pt")
    torch.save({name: p.grad for name, p in net.named_parameters()}, "gradient.pt")


if __name__ == "__main__":
    main()
