"""A bridge shown without an account: a scripted ChatGPT, a scripted tunnel, and a story that they play.

Reaches the bridge through its front door alone, as a client.  Imports nothing of the project.
"""
