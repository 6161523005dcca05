"""Shahin Shamsabadi, Hayes, Balle, Weller, "Mnemonist: Locating Model Parameters that Memorize Training Examples" (UAI
2023).

remanence run mnemonist2023.table3 --scale smoke      two CPU cores: seconds

Printed are MAE + MSE of table 3 and section 3. `smoke` walks the same way on scikit-learn's 8x8 digits and says nothing
about the paper.
"""
