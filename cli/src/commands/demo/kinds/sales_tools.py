"""The tool of the demo's finance agent, in Python."""

from pydantic import BaseModel

from tickfleet import ToolError, tool

# In euros, by month and plan.
SALES = {
    "2026-08": {"team": 1840, "studio": 1200},
    "2026-09": {"team": 2105, "studio": 1600},
    "2026-10": {"team": 2390, "studio": 1450},
}


class Sales(BaseModel):
    month: str
    by_plan: dict[str, int]
    total: int


@tool(effect="read", timeout=5)
def sales_figures(month: str) -> Sales:
    """Adds up the sales of a closed month.

    Args:
        month: The month, such as 2026-10.
    """
    if month not in SALES:
        raise ToolError.permanent(f"No figures for {month}. Closed months: {', '.join(SALES)}.")
    return Sales(month=month, by_plan=SALES[month], total=sum(SALES[month].values()))
