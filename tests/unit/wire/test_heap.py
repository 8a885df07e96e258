"""A service that is set up is not searched for garbage; what comes later still is."""

import subprocess
import sys

# In a process of its own: the collector is one for all tests of this one.
SCRIPT = """
import gc, weakref
from draftwood_wire.heap import settle_heap

class Node:
    pass

def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

kept = [Node() for _ in range(10_000)]
before = cycle()
settle_heap()
assert before() is None, "garbage was frozen"
assert gc.get_freeze_count() > 10_000
assert not any(isinstance(thing, Node) for thing in gc.get_objects())
after = cycle()
new = 0
while after() is not None and new < 50_000:
    kept.append(Node())
    new += 1
assert 5_000 < new < 50_000, new
"""


def test_only_what_comes_later_is_searched() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
