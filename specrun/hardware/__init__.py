"""What this machine is, and which layers go where. Does not import llama_cpp; its devices are passed in."""
