"""A convolutional network of your own, about to be published.

    python own_cnn.py
    remanence audit model own_cnn:Net --weights cnn.pt --data private.npz --held-out others.npz \
        --normalize 0.3,0.37 --budget 30s --out cnn-audit

The first line is your training script: BatchNorm, dropout, Adam, mini-batches, normalised inputs. It saves the weights,
the records it trained on and records that it never saw. The second line is the audit.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.dropout = nn.Dropout(0.3)
        self.hidden = nn.Linear(32 * 2 * 2, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.features(x).flatten(1)
        return self.head(self.dropout(torch.relu(self.hidden(x))))


def main():
    torch.manual_seed(0)
    digits = load_digits()  # 1,797 images of 8×8 pixels
    x = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]  # in [0, 1]
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x))
    private, others = order[:100], order[100:1100]
    np.savez("private.npz", x=x[private], y=y[private])
    np.savez("others.npz", x=x[others], y=y[others])

    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _epoch in range(60):
        for batch in private[torch.randperm(len(private))].split(16):
            optimizer.zero_grad()
            cross_entropy(net((x[batch] - 0.3) / 0.37), y[batch]).backward()
            optimizer.step()
    net.eval()
    for name, part in (("private", private), ("others", others)):
        print(f"accuracy on {name}: {(net((x[part] - 0.3) / 0.37).argmax(1) == y[part]).float().mean():.0%}")
    torch.save(net.state_dict(), "cnn.pt")


if __name__ == "__main__":
    main()
