"""The command line, one file per command. Composition roots: only these and the pytest plugin
bring harness, targets and reports together."""
