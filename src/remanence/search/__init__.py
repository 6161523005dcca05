"""Minimisation of an objective over candidate records: distances, priors, labels, coordinates and the solver."""
