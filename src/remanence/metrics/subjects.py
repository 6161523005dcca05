"""Several records of one subject: a person's photographs, the frames of a scene, the visits of a patient.

Where people are held out whole, a reconstruction of one photograph also resembles the others of the same person, and
the photographs of one person are not exchangeable one by one. The unit of the test is then the subject: its score is
the best of its records, compared with held-out subjects of the same class and about as many records.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.metrics.exchangeability import Pool
from remanence.types import Data

_SIZES = 2**32  # more than a subject has records
_COMMON = 20  # subjects


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Subjects:
    """The subject of each record, private ones first, counted from 0; private subjects come first."""

    index: Tensor  # (private + held-out records,)
    private: int  # subjects

    @classmethod
    def from_groups(cls, truth: Data, held_out: Data) -> "Subjects | None":
        """The subjects of the records; None where every record is its own."""
        if truth.groups is None or held_out.groups is None:
            return None
        ours, first = truth.groups.cpu().unique(return_inverse=True)
        theirs, second = held_out.groups.cpu().unique(return_inverse=True)
        if both := set(ours.tolist()) & set(theirs.tolist()):
            message = (
                f"`groups` of private and held-out records must be different subjects, got {len(both)} in both: "
                "hold subjects out whole, or leave `groups` out to ask about single records"
            )
            raise BadInput(message, code="conflict", argument="groups")
        if len(ours) == len(truth) and len(theirs) == len(held_out):
            return None
        return cls(index=torch.cat([first, len(ours) + second]), private=len(ours))

    def pooled(self, pool: Pool, *, seed: int) -> Pool:
        """The scores of subjects. The best of more records is better by chance, so that only subjects of a class and of
        one size are exchangeable. Of a size that few have, so many records are drawn at random as the next smaller
        size has that is a power of two or common."""
        sizes, counts = self.index.bincount().unique(return_counts=True)
        usual = sorted({*sizes[counts >= _COMMON].tolist(), *(2**i for i in range(32))})
        generator = torch.Generator().manual_seed(seed)
        releases, subjects = len(pool.scores), int(self.index.max()) + 1
        scores = pool.scores.new_empty(releases, subjects)
        labels = torch.empty(subjects, dtype=torch.int64)
        release = torch.empty(self.private, dtype=torch.int64)
        for subject in range(subjects):
            records = (self.index == subject).nonzero()[:, 0]
            size = max(each for each in usual if each <= len(records))
            sampled = records[torch.randperm(len(records), generator=generator)[:size]]
            scores[:, subject] = pool.scores[:, sampled].amax(1)
            labels[subject] = size + _SIZES * int(pool.labels[records].mode().values)
            if subject < self.private:
                release[subject] = pool.release[records[0]]
        return Pool(scores=scores, labels=labels, release=release)

    def classes(self, labels: Tensor) -> Tensor:
        """The class of subjects by the labels of a pool of them."""
        return labels // _SIZES

    def best(self, pool: Pool) -> Tensor:
        """(private subjects,): the record of each that scores best."""
        scores, index = pool.private_scores, self.index[: pool.private]
        best = [torch.where(index == subject, scores, -torch.inf).argmax() for subject in range(self.private)]
        return torch.stack(best)
