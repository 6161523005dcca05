"""The preflight: do the model, its weights and the records fit together?"""
