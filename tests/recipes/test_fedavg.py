"""Clients of federated averaging at smoke scale."""

import pytest
from smoke import measures, results

pytestmark = pytest.mark.slow


def test_exact_records_and_labels_of_the_mean_of_two_clients() -> None:
    (result,) = results("fedavg.clients").values()
    found = measures(result)
    for clients in (1, 2):
        assert found[f"share found, {clients} clients"] > 0.8
        assert found[f"labels inferred, {clients} clients"] > 0.8


def test_records_of_clients_that_trained_on_mini_batches_of_unknown_order() -> None:
    found = {label: measures(result) for label, result in results("fedavg.local_training").items()}
    assert list(found) == ["SGD", "SGD with momentum", "Adam"]
    assert found["SGD with momentum"]["share found"] > 0.5
    assert all(each["labels inferred"] > 0.5 for each in found.values())


def test_labels_of_a_convolutional_client() -> None:
    found = {label: measures(result) for label, result in results("fedavg.convolutions").items()}
    assert {label.partition(",")[0] for label in found} == {"Flower's CNN", "LeNet", "ResNet-18"}
    assert all(each["labels inferred"] == 1 for each in found.values())


def test_statistics_of_batchnorm_are_sent_or_not() -> None:
    found = {label: measures(result) for label, result in results("fedavg.batch_norm").items()}
    assert list(found) == ["batches of 2, statistics not sent", "batches of 2, statistics sent"]
    assert found["batches of 2, statistics sent"] != found["batches of 2, statistics not sent"]


def test_the_mean_of_two_local_trainings() -> None:
    (result,) = results("fedavg.client_trainings").values()
    found = measures(result)
    assert all(found[f"labels inferred, {clients} clients"] > 0.5 for clients in (1, 2))
