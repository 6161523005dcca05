"""The test of a leak: which private records are recognised in the reconstructions, better than held-out ones are.

A record is scored by the candidate that singles it out: by each similarity, how much more alike they are than the
candidate is to any other record, private or held-out. The scores are standardised by class, the best similarity
counts, and ranks among the held-out records decide (`exchangeability`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.metrics.exchangeability import (
    FDR,
    Pool,
    RankTest,
    competitive,
    discoveries,
    rank_test,
    smallest_list,
    standardised,
)
from remanence.metrics.identification import Identification, identify, ranks_among
from remanence.metrics.pixel import MSE
from remanence.metrics.similarity import Similarity, similarities
from remanence.metrics.statistics import Interval, Roc, binomial_proportion, roc_of_p_values
from remanence.metrics.subjects import Subjects
from remanence.types import Data, Params

_EXACT = 1e-3  # of the squared distance to the nearest held-out record
_STORED = 200_000  # scores at most
_PAIRS = 4_000_000  # scored at once
_COPIES_AT_ONCE = 200_000  # pairs, whose differences are computed without a matrix product


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Releases:
    """Which release each candidate was reconstructed from, and which one each private record trained.

    A reconstruction is evidence of records of its own release only.
    """

    candidates: Tensor  # (candidates,)
    records: Tensor  # (private records,)

    @classmethod
    def one(cls, candidates: int, records: int) -> "Releases":
        """All candidates and records belong to the same release."""
        zeros = torch.zeros(max(candidates, records), dtype=torch.int64)
        return cls(candidates=zeros[:candidates], records=zeros[:records])

    def __len__(self) -> int:
        return 1 + max((int(each.max()) for each in (self.candidates, self.records) if len(each)), default=0)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class LeakTest:
    """Which private records are found, and how sure that is, for one record or, with subjects, for one person each.

    `scores` are all that the test needs: it can be computed again from them, the labels and the releases.
    """

    similarities: tuple[str, ...]
    pool: Pool  # of records; of subjects where several records are of one
    ranks: RankTest
    fdr: float
    by: Tensor  # (private records,): the similarity that recognises each
    candidate: Tensor  # (private records,): the candidate that does, -1 where there is none
    identification: Identification  # how well candidates pick their records out of the held-out ones
    copies: Tensor  # (private records,): exact copies
    record: Tensor  # (units,): of each row of the test the record that scores best; the records themselves
    subjects: Subjects | None = field(default=None)

    @property
    def p(self) -> Tensor:
        """(units,): the p-value of each record or subject."""
        return self.ranks.records

    @property
    def of_records(self) -> Tensor:
        """(private records,): the p-value of each record, which is that of its subject."""
        if self.subjects is None:
            return self.p
        return self.p[self.subjects.index[: len(self.by)]]

    @property
    def together(self) -> float:
        """The p-value of all records together."""
        return self.ranks.together

    @property
    def held_out(self) -> int:
        """The number of held-out records, or subjects, that the ranks are among."""
        return self.pool.scores.shape[1] - self.pool.private

    @cached_property
    def listed(self) -> Tensor:
        """(units,): the list at the false-discovery rate."""
        return discoveries(self.p, self.fdr)

    @property
    def units_copied(self) -> Tensor:
        """(units,): which records or subjects have an exact copy."""
        index = self.copies.nonzero()[:, 0]
        copied = torch.zeros(len(self.p), dtype=torch.bool)
        copied[index if self.subjects is None else self.subjects.index[index]] = True
        return copied

    @property
    def units_found(self) -> Tensor:
        """(units,): which records or subjects are listed, or have an exact copy."""
        return self.listed | self.units_copied

    @cached_property
    def found(self) -> Tensor:
        """(private records,): which records are found, one of each subject."""
        found = torch.zeros(len(self.by), dtype=torch.bool)
        found[self.record[self.units_found]] = True
        return found

    @property
    def false(self) -> float:
        """The number of listed records that are expected to be there by chance, at most."""
        return self.fdr * int(self.listed.sum())

    @property
    def fraction(self) -> Interval:
        """The fraction of the records, or subjects, that are found."""
        return binomial_proportion(int(self.units_found.sum()), len(self.p))

    @property
    def smallest_list(self) -> int:
        """The number of records that must leak before any can be listed, for want of held-out ones."""
        return smallest_list(self.pool, self.fdr)

    @property
    def untested(self) -> tuple[int, ...]:
        """Labels of private records of which nobody held any out."""
        labels, n = self.pool.labels, self.pool.private
        labels = labels if self.subjects is None else self.subjects.classes(labels)
        return tuple(sorted(set(labels[:n].tolist()) - set(labels[n:].tolist())))

    @property
    def roc(self) -> Roc:
        """True-positive rates by false-positive rates of held-out records."""
        return roc_of_p_values(self.p, distinct=self.held_out)

    def arrays(self) -> Params:
        """What the test can be computed from again (`retest`): the scores of private and then held-out records, the
        labels and the releases; of many releases and records the p-values alone."""
        if self.pool.scores.numel() > _STORED:
            return {"p": self.p.float()}
        labels, release = self.pool.labels.to(torch.int32), self.pool.release.to(torch.int32)
        return {"scores": self.pool.scores.float(), "labels": labels, "release": release}

    def recognised_by(self, record: int) -> str:
        """The name of the similarity by which a private record is recognised."""
        return self.similarities[int(self.by[record])]


def retest(arrays: Params, *, seed: int = 0) -> RankTest:
    """The rank test of stored `LeakTest.arrays`."""
    if "p" in arrays:
        message = "only p-values were stored of so many releases: `discoveries` lists records by them"
        raise BadInput(message, code="missing-array", argument="arrays")
    pool = Pool(scores=arrays["scores"], labels=arrays["labels"].long(), release=arrays["release"].long())
    return rank_test(pool, seed=seed)


def leak_test(
    candidates: Tensor,
    truth: Data,
    held_out: Data,
    *,
    releases: Releases | None = None,
    by: Sequence[Similarity] | None = None,
    fdr: float = FDR,
    seed: int = 0,
) -> LeakTest:
    """Test whether `truth`, the private records, are recognised in the `candidates` better than `held_out` ones."""
    n, by = len(truth), tuple(by or similarities(truth))
    releases = releases or Releases.one(len(candidates), n)
    finite = candidates.flatten(1).isfinite().all(1)  # a search may have diverged
    x = torch.cat([truth.x, held_out.x]).to(candidates.device, torch.float32)
    labels = torch.cat([truth.y, held_out.y]).cpu()
    of_candidates = releases.candidates[finite.cpu()]
    best = [_best(candidates[finite].float(), x, n, each, of_candidates, len(releases)) for each in by]
    scores = _standardised([each.scores for each in best], labels, n)
    largest, similarity = scores.max(0)
    index = torch.stack([each.index for each in best]).gather(0, similarity[None])[0]
    # Ranks are by the similarity that singles most records out, private or not: the best of several for each record
    # would rank strangers high too.
    rank = best[int(scores.topk(min(n, scores.shape[2]), dim=2).values.mean((1, 2)).argmax())].rank
    pairs = (releases.records, torch.arange(n))
    numbers = torch.cat([finite.nonzero()[:, 0].cpu(), torch.tensor([-1])])  # the last for records without a candidate
    pool = Pool(scores=largest, labels=labels, release=releases.records)
    subjects = Subjects.from_groups(truth, held_out)
    units = pool if subjects is None else subjects.pooled(pool, seed=seed)
    return LeakTest(
        similarities=tuple(each.name for each in by),
        pool=units,
        ranks=rank_test(units, seed=seed),
        fdr=fdr,
        by=similarity[pairs],
        candidate=numbers[index[pairs]],
        identification=identify(rank[pairs], rank[:, n:], labels[:n], labels[n:]),
        copies=exact_copies(candidates[finite], truth, held_out).cpu(),
        record=torch.arange(n) if subjects is None else subjects.best(pool),
        subjects=subjects,
    )


def _standardised(scores: Sequence[Tensor], labels: Tensor, private: int) -> Tensor:
    """(similarities, releases, records): scores by each similarity that can be compared with one another."""
    return torch.stack([standardised(each, labels, private) for each in scores])


def pooled(similar: Sequence[Tensor], labels: Tensor, private: int) -> Pool:
    """The pool of one release from what each similarity says of its candidates (candidates, records), the `private`
    records first: where many tests share these, as in simulations."""
    best = [competitive(each).amax(0)[None] for each in similar]
    release = torch.zeros(private, dtype=torch.int64)
    return Pool(scores=_standardised(best, labels, private).amax(0), labels=labels, release=release)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Best:
    """Of each release and record the candidate that singles it out, shape (releases, records) each."""

    scores: Tensor  # competitive
    index: Tensor  # of the candidate, -1 where the release has none
    rank: Tensor  # of the record among the held-out ones, by their similarity to this candidate


def _best(candidates: Tensor, x: Tensor, private: int, by: Similarity, release: Tensor, releases: int) -> _Best:
    """The best candidates by one similarity, `release` being that of each candidate."""
    shape = (releases, len(x))
    best, index, rank = torch.full(shape, torch.nan), torch.full(shape, -1), torch.full(shape, len(x) - private + 1)
    rows = max(1, _PAIRS // max(1, len(x)))
    for start in range(0, len(candidates), rows):
        similar = by.pairwise(candidates[start : start + rows], x)
        scores, ranks, part = competitive(similar).cpu(), ranks_among(similar, private).cpu(), release[start:][:rows]
        for row in part.unique():
            here = (part == row).nonzero()[:, 0]
            value, position = scores[here].max(0)
            better = ~(value <= best[row])  # also where there was none
            best[row] = torch.where(better, value, best[row])
            index[row] = torch.where(better, start + here[position], index[row])
            rank[row] = torch.where(better, ranks[here[position], torch.arange(len(x))], rank[row])
    lowest = float(best[~best.isnan()].min()) if bool((~best.isnan()).any()) else 0.0
    return _Best(scores=best.nan_to_num(nan=lowest), index=index, rank=rank)


def exact_copies(candidates: Tensor, truth: Data, held_out: Data) -> Tensor:
    """(records,): whether a candidate is a thousand times nearer, by squared error, than any held-out record is.

    A candidate that has one value throughout, which a search that went nowhere may return, is a copy of nothing; where
    held-out records are copied likewise, as in tables of few different rows, copies are no evidence.
    """
    flat = candidates.flatten(1)
    candidates = candidates[flat.amax(1) > flat.amin(1)] if flat.shape[1] > 1 and len(flat) else candidates
    private, others = truth.x.to(candidates), held_out.x.to(candidates)
    copied = _copied(candidates, private, others)
    return copied & ~_copied(candidates, others, private).any()


def _copied(candidates: Tensor, records: Tensor, others: Tensor) -> Tensor:
    """(records,): whether a candidate is a thousand times nearer than any of the `others`."""
    return _nearest(candidates, records) < _EXACT * _nearest(others, records)


def _nearest(candidates: Tensor, records: Tensor) -> Tensor:
    """(records,): the squared error of the nearest candidate."""
    if not len(candidates) or not len(records):
        return records.new_full((len(records),), torch.inf)
    rows = max(1, _COPIES_AT_ONCE // len(candidates))
    return torch.cat([MSE.pairwise(candidates, chunk).amin(dim=0) for chunk in records.split(rows)])
