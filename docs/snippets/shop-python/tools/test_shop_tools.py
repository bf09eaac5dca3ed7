# ANCHOR: test
import pytest

from shop_tools import check_stock, reserve_stock
from tickfleet import ToolError, testing


def test_stock_is_returned():
    assert testing.call(check_stock, {"sku": "MUG-1"}) == {"sku": "MUG-1", "pieces": 12}


def test_more_than_the_stock_cannot_be_reserved():
    with pytest.raises(ToolError, match="Only 12 pieces"):
        testing.call(reserve_stock, {"sku": "MUG-1", "pieces": 99}, context=testing.context(agent="support"))
# ANCHOR_END: test
