"""Tian et al., "Simulating Training Dynamics to Reconstruct Training Data from Deep Neural Networks" (ICLR 2025).

The adversary knows the weights before and after fine-tuning and how it was done. Scores are the paper's: SSIM of
normalised images, matched greedily. Two things differ at every scale: the paper's pre-trained ResNet is not public, so
ours is pre-trained on disjoint images; and our searches go from coarse to fine images, for fewer iterations than the
30,000 of the authors' code (each experiment states its budget). `small` takes fewer images and narrower networks,
`smoke` scikit-learn's 8x8 digits.
"""
