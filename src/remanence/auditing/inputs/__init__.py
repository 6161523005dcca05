"""What the owner brings, as a release and records: models, weights, recipes, updates, tables, scikit-learn."""
