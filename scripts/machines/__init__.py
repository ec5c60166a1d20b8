"""Machines that are simulated: real models and specrun's real code, with the time of passes taken from tables."""
