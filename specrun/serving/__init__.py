"""`specrun serve`: the HTTP server. One thread answers HTTP, another owns the model and writes.

An endpoint reads the request's JSON with models of pydantic (`request_fields`, `prompts`, `tools`), turns it into what
is `Wanted`, whatever its address, and puts a `Job` into the `JobQueue` (`service`). The `Worker` takes the jobs, and
writes several answers (`Writing`) at the same time, each in a slot of the cache. `answers` turns the events of a job
into what clients read: `reading` knows what a text means, and the `Shape` of each endpoint how it is sent.
"""
