"""An OpenAI-compatible HTTP server: one model, several requests at once by continuous batching."""
