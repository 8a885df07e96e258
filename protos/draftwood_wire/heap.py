"""Python's collector of cyclic garbage in a service: while it runs, every request waits."""

import gc

# Objects that come to be, less those that go, between two collections of what is new: by default 700, which records on
# their way to the telemetry thread exceed several times a second. Loops make no cycles; errors and broken calls do.
_NEW_OBJECTS = 20_000


def settle_heap() -> None:
    """For a service that is set up: what there is now stays, and no collection looks at it again.

    A verifier has 190,000 objects by then, mostly torch's; going through them takes 0.1 s.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
