"""Mutation testing of what decides correctness: see "Mutants" in CONTRIBUTING.md."""
