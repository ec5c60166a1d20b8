"""What a pass costs and brings, and which plan and tree size follow from that."""
