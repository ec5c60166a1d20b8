"""What this machine is: processor, memory, storage, devices. Imports nothing of llama.cpp; devices are passed in."""
