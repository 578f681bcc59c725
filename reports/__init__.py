"""Reports: everything that is said about a run, computed from its journal and nothing else.

The flow of a report, each stage a module that can be read alone:

    journal.jsonl -> history   what each unit and fault did, as typed lives and windows
                  -> ledger    every instant of every learner under exactly one label
                  -> tokens    every token trained: merged, lost or in flight
                  -> effects   planned, executed, effective: three facts, never mixed
                  -> healing   how long each unit took to come back, by phase
                  -> checks    what must never happen: valid, invalid or unknown, with evidence
                  -> gate      the bounds that the experiment asked for
                  -> verdict   one outcome, its reasons, and the exit status
                  -> build     the Report value: report.json
                  -> text, html, junit, prom, write    the same facts for people and machines

All arithmetic on time is in integer nanoseconds. The same journal gives the same bytes, and a
journal cut by a crash still gives a report that says so. Nothing here needs JAX, gRPC, Docker or
pydantic, and deleting what is written here loses nothing.
"""
