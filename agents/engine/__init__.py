"""The embedded engine: a server process that samples from a transformers model, on a CPU or a GPU.

It answers vLLM's HTTP requests. From the outside in: `app` (routes), `completions` and `chat` (one request each),
`protocol` (the bodies), `loop` (the thread that decodes), `scheduler` (what is decoded next), `slots` (whose tokens are
cached where), `models` (versions of the weights), `attention` (the cache itself), `sampling` (the draw).
"""
