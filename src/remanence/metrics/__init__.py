from remanence.metrics.base import Metric
from remanence.metrics.evaluate import Scores, default_metrics, evaluate
from remanence.metrics.matching import MATCHINGS, Matching, greedy_ssim, hungarian, identity, nearest_ncc
from remanence.metrics.null import Null
from remanence.metrics.perceptual import LPIPS
from remanence.metrics.pixel import MAE, MSE, NCC, PSNR
from remanence.metrics.ssim import SSIM, SSIM3
from remanence.metrics.statistics import Interval, Roc

METRICS = (SSIM, SSIM3, MSE, MAE, PSNR, NCC, LPIPS)

__all__ = [
    "LPIPS",
    "MAE",
    "MATCHINGS",
    "METRICS",
    "MSE",
    "NCC",
    "PSNR",
    "SSIM",
    "SSIM3",
    "Interval",
    "Matching",
    "Metric",
    "Null",
    "Roc",
    "Scores",
    "default_metrics",
    "evaluate",
    "greedy_ssim",
    "hungarian",
    "identity",
    "nearest_ncc",
]
