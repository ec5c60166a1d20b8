"""The parts of `scripts/bench_gpu`."""
