"""The paper's scale, simulated: chips that fail by the million, and links between data centers.

Nothing here runs a trainer. What is fitted, what is predicted and what is only assumed is said
where it is defined and printed with every result.
"""
