"""A federated client that stores what it was sent and what it sends back, and the audit of that.

    python federated_client.py
    remanence audit update federated_client:Net --before before.pt --after after.pt \
        --local "sgd lr=0.1 epochs=1 batch=full" --data batch.npz --held-out others.npz --budget 30s --out client-audit
    remanence audit update federated_client:Net --before before.pt --after after.pt \
        --local "sgd lr=0.1 epochs=1 batch=full" --data batch.npz --held-out others.npz --out client-sweep \
        --attack FirstLayer --attack GradientMatching --budget 60s --sweep clients=1,2,5,10 noise=0,0.1,1,10

`dump_update` is a mod for Flower: `@app.train(mods=[dump_update])`. Its five lines are all the glue there is. Flower is
not needed here: `main` plays the server, and `Message` and `Arrays` have the little of Flower's that a mod touches.
"""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy


def dump_update(msg, ctxt, call_next):
    torch.save(msg.content["arrays"].to_torch_state_dict(), "before.pt")
    reply = call_next(msg, ctxt)
    torch.save(reply.content["arrays"].to_torch_state_dict(), "after.pt")
    return reply


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 300), nn.Linear(300, 10)

    def forward(self, x):
        return self.head(torch.relu(self.hidden(x.flatten(1))))


@dataclass
class Arrays:
    weights: dict

    def to_torch_state_dict(self):
        return self.weights


@dataclass
class Message:
    content: dict


def train(msg, ctxt):
    """One step on the 16 records of the client, as its app does it."""
    batch = np.load("batch.npz")
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    cross_entropy(net(torch.tensor(batch["x"])), torch.tensor(batch["y"])).backward()
    optimizer.step()
    return Message({"arrays": Arrays(net.state_dict())})


def main():
    torch.manual_seed(0)
    digits = load_digits()
    x, y = (digits.images / 16).astype("float32")[:, None], digits.target
    order = np.random.default_rng(0).permutation(len(x))
    np.savez("batch.npz", x=x[order[:16]], y=y[order[:16]])
    np.savez("others.npz", x=x[order[16:1016]], y=y[order[16:1016]])
    dump_update(Message({"arrays": Arrays(Net().state_dict())}), None, train)


if __name__ == "__main__":
    main()
