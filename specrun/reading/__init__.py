"""What an answer's text means: which of it is the answer, which reasoning, and which a call of a tool.

Every model family writes this in its own way, in plain text. A reader takes the text in pieces, however it is cut, and
tells what each piece adds. It holds back what may be the beginning of a marker.
"""
