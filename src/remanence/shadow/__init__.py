from remanence.shadow.bank import ShadowBank, build_bank, stack_weights

__all__ = ["ShadowBank", "build_bank", "stack_weights"]
