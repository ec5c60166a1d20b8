"""`specrun serve`: the HTTP server. Two threads: one answers HTTP, the other owns the model and writes.

An endpoint reads the request's JSON (`fields`, `request_fields`, `chat_fields`, `messages`, `tools`), which says what
is `expected` of the answer, has its prompt made (`prompts`), puts a `Job` into the `JobQueue`, and turns the job's
events into what clients expect (`answer_reader` and `reading` for what a text says, `chat_completions` and
`anthropic_messages` for how it is sent). The `Worker` takes the jobs, and writes the answers of several (`Writing`) at
a time, each in a lane of the cache.
"""
