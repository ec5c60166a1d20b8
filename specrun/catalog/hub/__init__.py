"""Access to the Hugging Face hub through its own client. No other room imports huggingface_hub.

HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE and proxy variables therefore work as in other programs.
Every failure becomes a HubError with a message of one line.
"""
