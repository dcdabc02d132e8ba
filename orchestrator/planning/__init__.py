"""Deciding: profile, model card, machine and engine in; a Plan out. Nothing here starts or measures.

`planner.make_plan` is pure. `inputs.gather` is the one module that looks at the world, for the planner.
"""
