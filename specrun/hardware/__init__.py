"""What this machine is, and which layers go where. Nothing here imports llama_cpp: its devices are arguments."""
