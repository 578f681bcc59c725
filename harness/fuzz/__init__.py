"""Experiments drawn from a seed, run in virtual time, judged, and shrunk to what matters.

``draw`` makes experiments, ``act`` runs one, ``shrink`` finds the smallest one that still fails,
``write`` puts it into a file, ``campaign`` does all of it for many seeds on all cores. Judging is
handed in from outside: nothing in ``harness`` reads reports.
"""
