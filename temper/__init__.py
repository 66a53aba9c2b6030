"""Temper on the controller: from an inventory to plans, roll-outs, statements and reports."""
