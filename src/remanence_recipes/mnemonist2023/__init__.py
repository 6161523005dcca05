"""Shahin Shamsabadi, Hayes, Balle, Weller, "Mnemonist: Locating Model Parameters that Memorize Training Examples" (UAI
2023).

remanence run mnemonist2023.table3 --scale smoke      two CPU cores: seconds

Printed are MAE + MSE of table 3 and of section 3. At `smoke` scale the records are scikit-learn's 8x8 digits.
"""
