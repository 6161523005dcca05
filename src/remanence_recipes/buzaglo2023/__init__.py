"""Buzaglo, Haim, Yehudai, Vardi, Oz, Nikankin, Irani, "Deconstructing Data Reconstruction: Multiclass, Weight Decay and
General Losses" (NeurIPS 2023), after Haim, Vardi, Yehudai, Shamir, Irani, "Reconstructing Training Data from Trained
Neural Networks" (NeurIPS 2022): what the trained weights of a network alone tell about its training images.

remanence run buzaglo2023.figure2_binary_vs_multiclass --seed 2     scale small, one CPU core: about four minutes
expected          of 50 images Stationarity finds 45 with ten classes and 6 with two groups, KKT 1 and 8; over three
                  victims of each ten over two: 0.71 more found by Stationarity (0.68 to 0.72), none by KKT
remanence run buzaglo2023.figure4_weight_decay --seed 2 --experiment "weight decay over none"
expected          over three victims of each, Stationarity: decay 0.003 over none 0.89 (0.86 to 0.90), over none from a
                  small first layer 0.59 (0.52 to 0.66), and 0.19 (0.12 to 0.26) where the rate follows the loss
remanence run buzaglo2023.figure3_classes --seed 2
expected          ten classes over two: 0.11 more found by Stationarity (0.02 to 0.22)
remanence run buzaglo2023.figure6_cifar100 --seed 1
expected          of 50, 100 and 200 images of 50 classes Stationarity finds 50, 97 and 133, KKT 1, 0 and 0

At paper scale the images and nets are the paper's, and training and search are shorter: see `weights_alone`.
"""
