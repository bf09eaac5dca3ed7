"""A fleet for tests of an agent: pytest agents/test_support.py"""

# ANCHOR: fixture
import pytest
from tickfleet import testing


@pytest.fixture(scope="session")
def fleet():
    with testing.fleet("shop") as shop:
        yield shop
# ANCHOR_END: fixture
