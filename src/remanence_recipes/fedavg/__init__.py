"""Clients of federated averaging as they send: local training, means over clients, convolutions, BatchNorm."""
