"""Buzaglo, Haim, Yehudai, Vardi, Oz, Nikankin, Irani, "Deconstructing Data Reconstruction: Multiclass, Weight Decay and
General Losses" (NeurIPS 2023), after Haim, Vardi, Yehudai, Shamir, Irani, "Reconstructing Training Data from Trained
Neural Networks" (NeurIPS 2022): what the trained weights of a network alone tell about its training images.
"""
