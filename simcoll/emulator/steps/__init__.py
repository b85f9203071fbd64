"""The steps of a plan as the engines see them: their columns, placement, lanes, routes and costs.

Every engine uses them, so no engine may be imported here.
"""
