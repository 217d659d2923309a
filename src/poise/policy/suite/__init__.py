"""One round of decisions of a suite, in layers: each class builds on the one before it, and `deciding.Round` is whole.

`base` has the state of a round, `placing` finds room, `blocked` makes or keeps room for units that have none,
`changing` resizes and moves running units, and `deciding` serves the candidates in order and makes the plan.
"""
