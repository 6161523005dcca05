"""Releases, metrics and matchings in plain words, for readers who know none of them."""

from collections.abc import Mapping, Sequence

from remanence.experiments.results import AttackSummary, Result

RELEASES = {
    "Gradient": "the gradient of a batch of records, as a client of federated learning sends it to the server",
    "LocalUpdate": "the change of a model after a client trained it on a batch of records, as it is sent to the server",
    "TransformerUpdate": "the gradient of a batch of sentences, as a client that trains a transformer sends it",
    "WeightsOnly": "a trained model",
    "FineTuned": "a fine-tuned model, the model that it started from and how it was trained",
    "FineTunedUnknownRecipe": "a fine-tuned model and the model that it started from",
    "AllButOne": "a trained model, its initial weights and how it was trained",
    "AllButOneUnknownInit": "a trained model and how it was trained",
    "BeforeAndAfter": "a model before and after records were deleted or added, and how it was trained",
}
METRICS = {
    "ssim": "how alike two pictures look, patch by patch (1 is the same picture)",
    "normalised_ssim": "ssim of pictures whose channels are normalised as for the model (1 is the same picture)",
    "ssim3": "ssim by patches of three pixels (1 is the same picture)",
    "mse": "the mean squared difference between values, which for pixels lie between 0 and 1 (0 is the same record)",
    "mae": "the mean difference between values, which for pixels lie between 0 and 1 (0 is the same record)",
    "mae+mse": "the sum of mae and mse (0 is the same record)",
    "psnr": "mse in decibels (20 is a rough likeness, 40 can hardly be distinguished from the record)",
    "ncc": "how alike two records are once brightness and contrast are set aside (1 is the same)",
    "cosine": "how alike the directions of two records are, whatever their length (1 is the same, 0 nothing alike)",
    "lpips": "how different two pictures look to a net that was trained on photographs (0 is the same picture)",
}
MATCHINGS = {
    "identity": "the first reconstruction with the first record, and so on: the attack says which is which",
    "hungarian": "one reconstruction with one record each, so that all together are as alike as can be",
    "greedy_ssim": "the most alike pair first, then the most alike of those that are left",
    "greedy_normalised_ssim": "the pair most alike by normalised_ssim first, then the next of those that are left",
    "nearest_ncc": "each record with the reconstruction that is most like it, which several records may share",
}


def released(attack: AttackSummary) -> str:
    """What was released and what was withheld, in one sentence; a release that is not ours goes by its name."""
    kind = attack.release.kind
    return f"Released: {RELEASES.get(kind, kind)}. Withheld: {attack.release.withholds}."


def metrics_in(results: Sequence[Result]) -> list[tuple[str, str]]:
    """The metrics of the results, each with its meaning."""
    return _known(METRICS, [name for result in results if result.attack for name in result.attack.scores.metrics])


def matchings_in(results: Sequence[Result]) -> list[tuple[str, str]]:
    """The matchings of the results, each with its meaning."""
    return _known(MATCHINGS, [result.attack.matching for result in results if result.attack])


def _known(words: Mapping[str, str], names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, words[name]) for name in dict.fromkeys(names) if name in words]
