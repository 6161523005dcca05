"""A network that was fine-tuned from a public base on 100 private records.

    python fine_tuned.py
    remanence audit model fine_tuned:Net --weights tuned.pt --base base.pt --recipe train.toml \
        --data private.npz --held-out others.npz --budget 30s --out tuned-audit

Each record is the picture of a four-digit number, 8×32 pixels, and its label is the first digit.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(256, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU())
        self.head = nn.Linear(100, 10)

    def forward(self, x):
        return self.head(self.body(x))


def numbers(count):
    """Pictures (count, 1, 8, 32) of four digits side by side, and the first of them."""
    digits = load_digits()
    chosen = torch.randint(len(digits.images), (count, 4))
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[chosen]  # (count, 4, 8, 8)
    return images.transpose(1, 2).reshape(count, 1, 8, 32), torch.tensor(digits.target)[chosen[:, 0]]


def fit(net, optimizer, x, y, epochs, batch_size):
    for _epoch in range(epochs):
        for batch in torch.randperm(len(x)).split(batch_size):
            optimizer.zero_grad()
            cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()


def main():
    torch.manual_seed(0)
    public, private, others = numbers(4000), numbers(100), numbers(1000)
    np.savez("private.npz", x=private[0], y=private[1])
    np.savez("others.npz", x=others[0], y=others[1])

    net = Net()
    fit(net, torch.optim.Adam(net.parameters(), lr=1e-3), *public, epochs=5, batch_size=64)
    torch.save(net.state_dict(), "base.pt")
    fit(net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9), *private, epochs=30, batch_size=100)
    torch.save({"state_dict": net.state_dict()}, "tuned.pt")
    with open("train.toml", "w") as file:
        file.write('optimizer = "sgd"\nlr = 0.01\nmomentum = 0.9\nepochs = 30\nbatch_size = "full"\n')
    for name, (x, y) in (("private", private), ("others", others)):
        print(f"accuracy on {name}: {(net(x).argmax(1) == y).float().mean():.0%}")


if __name__ == "__main__":
    main()
