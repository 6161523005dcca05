"""Tian et al., "Simulating Training Dynamics to Reconstruct Training Data from Deep Neural Networks" (ICLR 2025).

remanence run tian2025.mlp_100 --scale paper --device cuda      one H200
expected                                                        mean normalised SSIM above 0.80, printed 0.3374

Scores are the paper's: greedy one-to-one SSIM of normalised images. The paper's pre-trained start is not public: ours
is pre-trained on disjoint images. `small` takes fewer images and narrower nets, `smoke` digits.
"""
