"""Buzaglo, Haim, Yehudai, Vardi, Oz, Nikankin, Irani, "Deconstructing Data Reconstruction: Multiclass, Weight Decay and
General Losses" (NeurIPS 2023), after Haim, Vardi, Yehudai, Shamir, Irani, "Reconstructing Training Data from Trained
Neural Networks" (NeurIPS 2022): what the trained weights of a network alone tell about its training images.

remanence run buzaglo2023.figure2_binary_vs_multiclass --seed 1     scale small, one CPU core: about six minutes
expected          of 50 images Equilibrium finds 42 with ten classes and 19 with two groups, KKT 14 and 5

At paper scale the images and nets are the paper's, and training and search are shorter: see `weights_alone`.
"""
