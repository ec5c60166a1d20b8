"""What scripts/inject_faults.py injects: a file for each family of faults."""
