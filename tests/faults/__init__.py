"""Workers under fault. In the docstrings, `#1` to `#33` number the kinds of fault in our list of what can go wrong, and `I1` to
`I8` the invariants that hold all the same: see docs/explanation/leases.md.
"""
