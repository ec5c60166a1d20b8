"""Token trees, drafters, acceptance and planning in pure numpy; nothing here knows llama.cpp, a disk or a terminal."""
