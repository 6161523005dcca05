"""Wang, Lee, Lei, "Reconstructing Training Data from Model Gradient, Provably" (AISTATS 2023), in the paper's order.

    remanence run wang2023.figure2 --scale full       one CPU core, about five minutes

`planted` has figure 2, and activations and depth on planted batches; `rates` theorem 5.1 and section 7.1; `images`
figure 3 and CIFAR-10. Printed numbers are read off the curves of figure 2, whose axis is taken for the Frobenius norm
of the error over the size of the batch. At scale `full` nothing is smaller than in the paper.
"""
