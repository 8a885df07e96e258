"""`python -m draftwood.supervised PARENT_PID MODULE ARGUMENTS...`: runs a module that can't outlive its launcher.

The kernel kills this process when the thread that started it ends, even if the launcher was killed with SIGKILL.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask Linux for SIGKILL at the parent's death; elsewhere the launcher's own clean-up has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the request took effect.
    if os.getppid() != parent_pid:
        sys.exit("draftwood: the launcher is gone")


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    module = sys.argv[2]
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
