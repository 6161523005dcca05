"""Buzaglo, Haim et al., "Deconstructing Data Reconstruction: Multiclass, Weight Decay and General Losses" (2023).

remanence run buzaglo2023.figure2_binary_vs_multiclass     scale small, one CPU core: a few minutes
expected                                                   about half of 50 images by Equilibrium, none by KKT

`smoke` takes digits; below paper scale the victims are trained with momentum, which comes to the same rest sooner. At
paper scale sizes, rates and epochs are the paper's.
"""
