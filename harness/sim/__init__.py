"""Virtual time: the same nodes, faults and journal as a real run, from one seeded event heap.

``loop`` keeps time, ``network`` the links, ``storage`` what survives a crash, ``cluster`` hosts
the target's nodes and workers, ``options`` says how long everything takes. The runtime itself is
:mod:`harness.runtimes.simulated`.
"""
