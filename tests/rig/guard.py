"""What a test has started ends with it, also when the test itself is killed (a timeout, for one).

Workers outlive the gantryd that started them, so process groups and parents say nothing. The test
runs below a guardian that inherits every orphan of it, and ends them all when the test has ended.
"""

import contextlib
import ctypes
import os
import pathlib
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
GRACE_S = 2.0


def prctl(option, value):
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def descendants(root):
    """Process ids below `root`, zombies included."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError, ValueError):  # Any may end meanwhile.
            stat = pathlib.Path("/proc", name, "stat").read_text(encoding="utf-8")
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found, left = [], [root]
    while left:
        left += (below := children.get(left.pop(), []))
        found += below
    return found


def end_descendants():
    """Of this process: SIGTERM first, SIGKILL to what is left after a while; reaps all."""
    end = time.monotonic() + GRACE_S
    told = set()
    while pids := descendants(os.getpid()):
        is_late = time.monotonic() > end
        for pid in pids:
            if is_late or pid not in told:
                told.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        time.sleep(0.02)


def guard(main, parent):
    """Runs `main` in a child and is the guardian; does not return. `parent`: whose end ends all."""
    class Ended(Exception):
        pass

    def on_signal(*_):
        raise Ended

    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, on_signal)
    status = 1
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            raise Ended
        test = os.fork()
        if test == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            sys.exit(main())
        pid = 0
        while pid != test:
            pid, raw = os.wait()  # orphans that ended by themselves come here too
        status = os.waitstatus_to_exitcode(raw)
    except Ended:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_descendants()
    os._exit(status if status >= 0 else 128 - status)


def run(main):
    """Calls `main` so, and ends this process with the exit status that it returns."""
    sys.stdout.flush()
    parent = os.getpid()
    guardian = os.fork()
    if guardian == 0:
        guard(main, parent)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(guardian, signal.SIGTERM))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(guardian, 0)[1]))
