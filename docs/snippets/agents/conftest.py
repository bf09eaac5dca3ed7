"""A fleet for tests of an agent: pytest agents/test_support.py"""

# ANCHOR: fixture
import os
import re
import subprocess

import pytest
from tickfleet import Fleet


@pytest.fixture(scope="session")
def fleet(tmp_path_factory):
    """A client of a new fleet with the configuration in shop, and a Redis of its own."""
    variables = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    command = ["tickfleet", "dev", "--redis", "--config", os.path.abspath("shop")]
    folder = tmp_path_factory.mktemp("fleet")
    with subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True) as dev:
        for line in dev.stdout:
            if found := re.search("export REDIS_URL='(.*)'", line):
                url = found[1]
            if line.startswith("Ctrl-C"):
                break
        with Fleet(url, tenant="acme") as client:
            yield client
        dev.terminate()
# ANCHOR_END: fixture
