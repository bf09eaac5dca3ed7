"""A sales report, with a NumPy docstring."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tickfleet import Context, ToolError, tool


@dataclass
class Report:
    """Sales of a month. Without data, `has_data` is false: a model that receives an empty result invents figures."""

    month: str
    region: str | None
    has_data: bool
    sales: int
    total_cents: int


@tool(effect="read", timeout=10, category="examples")
def sales_report_tool(month: str, context: Context, region: Literal["north", "south"] | None = None) -> Report:
    """Adds up the sales of a month.

    Parameters
    ----------
    month : str
        The month, such as 2026-11.
    region : str, optional
        One region alone; all of them otherwise.
    """
    if not re.fullmatch(r"\d{4}-\d{2}", month):
        raise ToolError.invalid_arguments(f"{month!r} is no month such as 2026-11.")
    file = Path("data") / context.tenant / "sales.json"
    sales = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    wanted = [sale for sale in sales if sale["date"].startswith(month) and region in (None, sale["region"])]
    context.log.info("%d of %d sales are of %s", len(wanted), len(sales), month)
    total = sum(sale["cents"] for sale in wanted)
    return Report(month=month, region=region, has_data=bool(sales), sales=len(wanted), total_cents=total)
