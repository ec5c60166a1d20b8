"""What specrun relies on in llama.cpp beyond its public header, each fact with a check for the build that runs."""
