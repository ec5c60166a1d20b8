"""`specrun serve`: the HTTP server. Two threads: one answers HTTP, the other owns the model and writes, one by one.

An endpoint reads the request's JSON (`fields`, `request_fields`, `chat_fields`), has its prompt made (`prompts`), puts
a `Job` into the `JobQueue`, and turns the job's events into what OpenAI's clients expect (`answer_reader` for what a
text says, `chat_completions` for how it is sent). The `Worker` takes the jobs.
"""
