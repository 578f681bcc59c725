"""The baseline: data-parallel training as one SPMD program over several processes.

Every step is one jitted computation with its batch spread over the processes and its parameters
held by each. One dead process ends them all: that is the point of comparing.
"""
