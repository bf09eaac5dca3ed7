"""The process in which tools run: a worker starts it, and speaks to it over a private socket.

``python -m tickfleet.host shop.tools`` serves the tools that the module ``shop.tools`` registers. Workers start it
themselves; nobody else has to.
"""
