"""The process in which tools run. A worker starts it, and communicates with it over a private socket.

``python -m tickfleet.host shop.tools`` serves the tools that the module ``shop.tools`` registers. Workers start this
command themselves. In a separate container it listens instead, and the worker connects:
``python -m tickfleet.host --listen /run/tickfleet/shop.sock shop.tools``.
"""
