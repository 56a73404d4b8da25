"""The service: a trained model over HTTP, with what was written since training kept on disk."""
