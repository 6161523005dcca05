"""Scores of a reconstruction: metrics, matchings of candidates to records, null levels and intervals."""

from remanence.metrics.base import Metric, normalised
from remanence.metrics.evaluation import Scores, default_metrics, evaluate
from remanence.metrics.lpips import LPIPS
from remanence.metrics.matching import MATCHINGS, Matching, greedy, greedy_ssim, hungarian, identity, nearest_ncc
from remanence.metrics.membership import Membership, membership_test
from remanence.metrics.nulls import Null
from remanence.metrics.pixel import COSINE, MAE, MAE_MSE, MSE, NCC, PSNR
from remanence.metrics.ssim import SSIM, SSIM3
from remanence.metrics.statistics import Interval, Roc

METRICS = (SSIM, SSIM3, MSE, MAE, MAE_MSE, PSNR, NCC, COSINE, LPIPS)

__all__ = [
    "COSINE",
    "LPIPS",
    "MAE",
    "MAE_MSE",
    "MATCHINGS",
    "METRICS",
    "MSE",
    "NCC",
    "PSNR",
    "SSIM",
    "SSIM3",
    "Interval",
    "Matching",
    "Membership",
    "Metric",
    "Null",
    "Roc",
    "Scores",
    "default_metrics",
    "evaluate",
    "greedy",
    "greedy_ssim",
    "hungarian",
    "identity",
    "membership_test",
    "nearest_ncc",
    "normalised",
]
