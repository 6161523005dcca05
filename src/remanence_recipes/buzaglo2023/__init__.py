"""Buzaglo, Haim et al., "Deconstructing Data Reconstruction: Multiclass, Weight Decay and General Losses" (2023).

remanence run buzaglo2023.figure2_binary_vs_multiclass --seed 1     scale small, one CPU core: about six minutes
expected          of 50 images Equilibrium finds 42 with ten classes and 19 with two groups, KKT 14 and 5

`smoke` takes digits; below paper scale the victims are trained with momentum, which comes to the same rest sooner. At
paper scale sizes, rates and epochs are the paper's.
"""
