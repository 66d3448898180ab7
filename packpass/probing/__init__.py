"""One document is changed, and the others are looked at: what `packpass.audit` and the passes that prove themselves
share.

Nothing here knows a model or a graph: values come by path, and slots have labels (`documents`).
"""
