"""Ensembles of models that are trained at once."""
