"""Buzaglo, Haim, Yehudai, Vardi, Oz, Nikankin, Irani, "Deconstructing Data Reconstruction: Multiclass, Weight Decay and
General Losses" (NeurIPS 2023), after Haim, Vardi, Yehudai, Shamir, Irani, "Reconstructing Training Data from Trained
Neural Networks" (NeurIPS 2022): what the trained weights of a network alone tell about its training images.

remanence run buzaglo2023.figure2_binary_vs_multiclass --seed 1     scale small, one CPU core: about six minutes
expected          of 50 images Equilibrium finds 42 with ten classes and 19 with two groups, KKT 14 and 10

                  ten over two: 0.46 more found by Equilibrium (0.32 to 0.59), none by KKT; so over four victims of
                  each and 1,500 steps, where the recipe now takes three and 1,200
remanence run buzaglo2023.figure4_weight_decay --seed 1
expected          over three victims of each, Equilibrium: decay 0.003 over none 0.72 (0.68 to 0.74), over none from a
                  small first layer 0.33 (0.30 to 0.38); KKT finds next to nothing in the few iterations of a survey
remanence run buzaglo2023.figure8_fixed_500 --seed 1
expected          of 60 records Equilibrium finds 0.17, 0.35 and 0.67 with 2, 5 and 10 classes; ten over two 0.51 (0.47
                  to 0.57) over three victims of each
remanence run buzaglo2023.figure6_cifar100 --seed 1
expected          of 50, 100 and 200 images of 50 classes Equilibrium finds 0.98, 0.71 and 0.03; the weights are at rest
                  at 200 too (0.014 unexplained off the kinks), so that it is the search, or the width of 300, that ends

At paper scale the images and nets are the paper's, and training and search are shorter: see `weights_alone`.
"""
