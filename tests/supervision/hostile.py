"""A stand-in for an engine that does to its supervisor what engines were seen to do.

`hostile.py FIFO KIND...`: the leader starts one process of each kind, every one of them says `KIND PID` on
the FIFO, and ends by itself after a minute whatever happens. The kinds of the leader itself come last:
`stay`, `stay-ignoring-term`, `exit=N`, `die=N`, `threads` (its first thread ends, another goes on).
"""

import ctypes
import os
import platform
import signal
import sys
import threading
import time

LIFE_S = 60


def report(fifo, kind):
    signal.alarm(LIFE_S)
    fd = os.open(fifo, os.O_WRONLY)
    os.write(fd, f"{kind} {os.getpid()}\n".encode())
    os.close(fd)


def stay(ignoring=False):
    if ignoring:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    while True:
        signal.pause()


def child(fifo, kind):
    if kind == "setsid":
        os.setsid()
    elif kind == "double-fork":
        os.setsid()
        if os.fork():
            os._exit(0)
    elif kind == "renamed":
        os.setsid()
        ctypes.CDLL(None).prctl(15, b"VLLM::EngineCore", 0, 0, 0)
    elif kind == "bare":
        # neither marker nor session nor parent: the shim alone can know it
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, fifo, "bare-inside"], {})
    if kind in ("ignores-term", "double-fork"):
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    report(fifo, kind)
    stay()


def main(fifo, *kinds):
    if kinds == ("bare-inside",):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        report(fifo, "bare")
        stay()
    *children, role = kinds
    for kind in children:
        if os.fork() == 0:
            child(fifo, kind)
    if role == "stay-ignoring-term":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    report(fifo, "leader")
    if role.startswith("exit="):
        os._exit(int(role[5:]))
    if role.startswith("die="):
        os.kill(os.getpid(), int(role[4:]))
    if role == "threads":
        threading.Thread(target=time.sleep, args=(LIFE_S,)).start()
        ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
    stay()


if __name__ == "__main__":
    main(*sys.argv[1:])
