"""Agents that were written with a framework run their tools through a fleet, under its caps and permissions.

=====================  ==========================================================  =================================
OpenAI Agents SDK      :func:`tickfleet.adapters.openai_agents.fleet_tools`        ``tickfleet[openai-agents]``
LangGraph, LangChain   :func:`tickfleet.adapters.langgraph.fleet_node`,            ``tickfleet[langgraph]``
                       :func:`tickfleet.adapters.langgraph.fleet_tools`
Pydantic AI            :class:`tickfleet.adapters.pydantic_ai.FleetToolset`        ``tickfleet[pydantic-ai]``
=====================  ==========================================================  =================================

Each takes an :class:`tickfleet.AsyncFleet` (LangGraph also a :class:`tickfleet.Fleet`), the agent's name, and
:class:`CallOptions`, which apply to every call and can be functions of the run's context. If a call is denied, capped or failed,
the framework treats it as a failed call of its own, and the model receives the fleet's message. An error without a
result (`Rejected`, `Unavailable`, …) ends the run of the agent.

A run that is resumed, retried or replayed repeats no effect. The id of each turn is derived from the framework's own
ids, so the fleet recognizes a repeated call and returns the first result, for as long as it
keeps ids (``retention.dedupe_for``). If a call cannot be identified, the adapter raises
:class:`tickfleet.client.InvalidMessage`, sends nothing, and states what to pass.
"""

from tickfleet.adapters._calls import CallOptions

__all__ = ["CallOptions"]
