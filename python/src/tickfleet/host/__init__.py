"""The process in which tools run: a worker starts it, and speaks to it over a private socket.

``python -m tickfleet.host shop.tools`` serves the tools that the module ``shop.tools`` registers. Workers start it
themselves. In a container of its own it listens instead, and the worker connects:
``python -m tickfleet.host --listen /run/tickfleet/shop.sock shop.tools``.
"""
