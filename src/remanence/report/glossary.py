"""Our own names for releases, metrics and matchings, in the words of a reader who knows none of them."""

from collections.abc import Mapping, Sequence

from remanence.experiments.results import Record

RELEASES = {
    "Gradient": "the gradient of a batch of records, as a client of federated learning sends it to the server",
    "LocalUpdate": "the change of a model after a client trained it on a batch of records, as it is sent to the server",
    "WeightsOnly": "a trained model",
    "FineTuned": "a fine-tuned model, the model that it started from and the way it was trained",
    "AllButOne": "a trained model, its first weights and the way it was trained",
    "AllButOneUnknownInit": "a trained model and the way it was trained",
}
METRICS = {
    "ssim": "how alike two pictures look, patch by patch (1 is the same picture)",
    "normalised_ssim": "ssim of pictures whose channels are normalised as for the model (1 is the same picture)",
    "ssim3": "ssim by patches of three pixels (1 is the same picture)",
    "mse": "the mean squared difference between values from 0 to 1 (0 is the same record)",
    "mae": "the mean difference between values from 0 to 1 (0 is the same record)",
    "mae+mse": "the sum of mae and mse (0 is the same record)",
    "psnr": "mse in decibels (20 is a rough likeness, 40 can hardly be told from the record)",
    "ncc": "how alike two records are once brightness and contrast are set aside (1 is the same)",
    "lpips": "how different two pictures look to a net that was trained on photographs (0 is the same picture)",
}
MATCHINGS = {
    "identity": "the first reconstruction with the first record, and so on: the attack says which is which",
    "hungarian": "one reconstruction with one record each, so that all together are as alike as can be",
    "greedy_ssim": "the most alike pair first, then the most alike of those that are left",
    "greedy_normalised_ssim": "the pair most alike by normalised_ssim first, then the next of those that are left",
    "nearest_ncc": "each record with the reconstruction that is most like it, which several records may share",
}


def released(record: Record) -> str:
    """What left the house and what stayed, in one sentence; of a release that is not ours, by its name."""
    kind = record["release"]["kind"]
    return f"Released: {RELEASES.get(kind, kind)}. Withheld: {record['release']['withholds']}."


def metrics_in(records: Sequence[Record]) -> list[tuple[str, str]]:
    return _known(METRICS, [name for record in records if "scores" in record for name in record["scores"]["metrics"]])


def matchings_in(records: Sequence[Record]) -> list[tuple[str, str]]:
    return _known(MATCHINGS, [record["matching"] for record in records if "matching" in record])


def _known(words: Mapping[str, str], names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, words[name]) for name in dict.fromkeys(names) if name in words]
