"""The shim: the parent of one engine. It starts it, keeps its log, records its exit, empties its tree.

Run as `python -I -S -X utf8 shim.py PROCESS_DIR`, in a session of its own. One file, standard library only,
everything imported at the start: an upgrade under a running shim changes nothing for it, and it never needs
the daemon.

Membership. The shim is the subreaper of all it starts, so every orphan below it becomes its child: the tree
is empty when wait() says ECHILD. That is a proof and no race can spoil it. Beside descent, processes count
that are in the engine's session, that were seen as members before, or that carry the marker.

The order of an end, which readers may rely on:
1. the leader is dead; exit.json appears with `emptied: false`;
2. what is left gets SIGTERM and one second, then SIGKILL by pidfd until the tree is empty, 10 s at most;
3. whoever asked for a kill is answered; the temporary folder goes;
4. exit.json again, with `emptied, emptied_at, leftovers, survivors, tmpdir_removed`; where there are
   survivors, `emptied` stays false and `emptied_at` null;
5. shim.sock goes and the shim ends 0.

Records are written by rename and without fsync: they matter within one boot only. A record that cannot be
written is tried again every second and answered by the socket meanwhile; at the end, too, the shim waits
for it, until a kill or SIGTERM says not to.

Shared memory of the tree in /dev/shm is left: a segment does not say who made it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time

TYPE_CHECKING = False  # the checker knows the name; `typing` would cost memory
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, NoReturn

PROTOCOL = 1
MARKER = "LLMSERVE_MARKER"
TICK_S = 1.0
BUSY_TICK_S = 0.05
LEFTOVER_GRACE_S = 1.0
EMPTY_CAP_S = 10.0
LOCK_CAP_S = 5.0
LOOK_SHARE = 400  # looking for members takes at most 1/400 of a core
CLIENTS = 16
LINE_BYTES = 16 * 1024
PENDING_BYTES = 1024 * 1024
ENVIRON_BYTES = SPEC_BYTES = 4 * 1024 * 1024

_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36


class Stat:
    """What /proc/PID/stat says. `start_time` in clock ticks since boot."""

    __slots__ = ("alive", "name", "pid", "ppid", "session", "start_time", "state")

    def __init__(self, pid: int, raw: bytes) -> None:
        fields = raw[raw.rindex(b")") + 2 :].split()
        self.pid = pid
        self.name = raw[raw.index(b"(") + 1 : raw.rindex(b")")].decode("utf-8", "replace")
        self.state = chr(fields[0][0])
        self.ppid = int(fields[1])
        self.session = int(fields[3])
        self.start_time = int(fields[19])
        # a leader whose first thread ended looks like a zombie while its other threads go on
        self.alive = self.state not in "ZX" or int(fields[17]) > 1

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.start_time


def read_stat(pid: int) -> Stat | None:
    """The process with this number now (a zombie, too), or None."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return Stat(pid, os.read(fd, 4096))
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(fd)


def processes() -> Iterator[Stat]:
    """Every process that /proc shows, zombies too."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            found = read_stat(int(entry))
            if found is not None:
                yield found


def carries(process: Stat, marker: str) -> bool:
    """Whether the marker stands in the process's environment as it was at its exec."""
    if process.state == "D":  # reading the memory of one stuck in a driver can hang for ever
        return False
    wanted = f"{MARKER}={marker}".encode()
    try:
        fd = os.open(f"/proc/{process.pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    raw = b""
    try:
        while len(raw) < ENVIRON_BYTES and (part := os.read(fd, 65536)):
            raw += part
    except OSError:
        return False
    finally:
        os.close(fd)
    return wanted in raw.split(b"\0")


def closure(table: Mapping[int, Stat], own: Callable[[Stat], bool]) -> list[Stat]:
    """The living of `table` that are `own` or descend from one that is, by process number."""
    verdict: dict[int, bool] = {}
    for process in table.values():
        path: list[int] = []
        at: Stat | None = process
        found = False
        while at is not None and at.pid not in path:
            if at.pid in verdict:
                found = verdict[at.pid]
                break
            path.append(at.pid)
            if own(at):
                found = True
                break
            at = table.get(at.ppid)
        # those above the one that settled it have their own verdict, these share it
        verdict.update(dict.fromkeys(path, found))
    return [p for pid, p in sorted(table.items()) if verdict[pid] and p.alive]


def send(pid: int, start_time: int, number: int) -> bool:
    """Signal exactly this process by pidfd; False where it is gone or may not be signalled."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        now = read_stat(pid)
        if now is None or now.start_time != start_time:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def remove_tree(path: str, cap_s: float = EMPTY_CAP_S) -> bool:
    """Remove a folder and never follow a link out of it; True where nothing of it is left.

    Inner folders are moved up into `path` first, so that any depth takes three descriptors and no recursion.
    """
    end = time.monotonic() + cap_s
    try:
        root = _open_folder(path, None)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    moved = 0
    try:
        progress = True
        while progress:
            progress = False
            for name in os.listdir(root):
                if time.monotonic() > end:
                    return False
                if _tried(os.unlink, name, dir_fd=root):
                    progress = True
                    continue
                try:
                    inner = _open_folder(name, root)
                except OSError:
                    continue
                for entry in os.listdir(inner):
                    if _tried(os.unlink, entry, dir_fd=inner):
                        progress = True
                        continue
                    moved += 1
                    # a folder must be writable to be moved, and opening makes it so
                    if _tried(lambda entry=entry, inner=inner: os.close(_open_folder(entry, inner))):
                        progress |= _tried(
                            os.rename, entry, f".moved-{moved}", src_dir_fd=inner, dst_dir_fd=root
                        )
                os.close(inner)
                progress |= _tried(os.rmdir, name, dir_fd=root)
        return _tried(os.rmdir, path)
    finally:
        os.close(root)


def _tried(call: Callable[..., object], *args: Any, **kwargs: Any) -> bool:
    try:
        call(*args, **kwargs)
    except OSError:
        return False
    return True


def _open_folder(name: str, parent: int | None) -> int:
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, os.O_PATH | flags, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(".", os.O_RDONLY | flags, dir_fd=handle)
    finally:
        os.close(handle)


def boot_id() -> str:
    """The kernel's name for this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        return f.read().strip()


def write_record(name: str, record: Mapping[str, Any]) -> None:
    """Write by rename, mode 0600, in the folder this process is in."""
    data = json.dumps(record).encode() + b"\n"
    fd = os.open(f".{name}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        unlink(f".{name}.new")
        raise
    finally:
        os.close(fd)
    os.replace(f".{name}.new", name)


def unlink(name: str) -> None:
    """Remove a file that may be gone already."""
    _tried(os.unlink, name)


def named(pid: int, name: str) -> dict[str, Any]:
    """A process as the records and replies show it."""
    return {"pid": pid, "name": name}


def say(text: str) -> None:
    """A line into shim.log, where that can be written."""
    _tried(os.write, 2, f"shim: {text}\n".encode("utf-8", "replace"))


def why(error: BaseException) -> str:
    """What went wrong, without the number and the path that the sentence around it has."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def become(spec: Mapping[str, Any], log_fd: int, report: int) -> NoReturn:
    """In the forked child: turn into the engine, or write into `report` why not."""
    doing = "prepare"
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (log_fd, 1), (log_fd, 2)):
            os.dup2(fd, target)
        if report != 3:
            report = os.dup2(report, 3, inheritable=False)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        doing = f"enter the working directory {spec['cwd']}"
        os.chdir(spec["cwd"])
        doing = f"run {spec['argv'][0]}"
        env = {**spec["env"], MARKER: spec["marker"], "SPT_NOENV": "1"}
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(spec["argv"][0], spec["argv"], env)
    except BaseException as e:
        os.write(report, f"cannot {doing}: {why(e)}".encode("utf-8", "replace")[:4096])
    finally:
        os._exit(127)


class Client:
    """One connection. `waits` is when it asked for a kill (monotonic s), None where it did not."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.got = b""
        self.pending = b""
        self.ended = False
        self.used = time.monotonic()
        self.waits: float | None = None


class Shim:
    """`phase`: "run" → "term" (the leader is dead, the rest was asked to go) → "kill" → "end"."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = spec
        self.me = os.getpid()
        self.phase = "run"
        self.phase_end = 0.0
        self.asked = False
        self.hurry = False
        self.stop_at: float | None = None
        self.leader = self.leader_start = self.session = 0
        self.leader_fd = self.exec_fd = self.log_fd = -1
        self.exec_error: str | None = None
        self.exit: dict[str, Any] | None = None
        self.childless = False
        self.living: list[Stat] = []
        self.known: frozenset[tuple[int, int]] = frozenset()
        self.killed: dict[tuple[int, int], str] = {}
        self.survivors: list[Stat] = []
        self.turn_at = self.looked_at = self.look_at = self.tick_at = 0.0
        self.unwritten: dict[str, dict[str, Any]] = {}
        self.clients: dict[int, Client] = {}
        self.complaints = 0
        self.boot_id = ""

        self.wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        unlink("shim.sock")
        mask = os.umask(0o177)
        self.listener.bind("shim.sock")
        os.umask(mask)
        self.listener.listen(64)
        self.poll = select.poll()
        self.poll.register(self.wake, select.POLLIN)
        self.poll.register(self.listener, select.POLLIN)

    def _ask(self, *_: object) -> None:
        self.asked = True
        self.hurry = self.phase == "end"

    # starting

    def start(self) -> None:
        """Fork the engine. What goes wrong before its exec becomes the exit record's `exec_error`."""
        # a signal between fork and exec must not run this process's handlers in the child
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        doing = "use /proc and pidfds (Linux 5.3 or newer)"
        try:
            self.boot_id = boot_id()
            os.close(os.pidfd_open(self.me))
            if self.spec["tmpdir"]:
                doing = f"make the temporary folder {self.spec['tmpdir']}"
                os.makedirs(self.spec["tmpdir"], 0o700, exist_ok=True)
            doing = f"open the log {self.spec['log']}"
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self.log_fd = os.open(self.spec["log"], flags, 0o600)
            doing = "fork"
            self.exec_fd, report = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self.leader = os.fork()
            if self.leader == 0:
                become(self.spec, self.log_fd, report)
        except (OSError, ValueError) as e:
            self._record_exit(exec_error=f"cannot {doing}: {why(e)}")
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(report)
        self.session = self.leader
        self.leader_fd = os.pidfd_open(self.leader)
        stat = read_stat(self.leader)
        self.leader_start = stat.start_time if stat else 0
        self.poll.register(self.exec_fd, select.POLLIN)
        self.poll.register(self.leader_fd, select.POLLIN)

    def _exec_reported(self) -> None:
        try:
            text = os.read(self.exec_fd, 4096)
        except BlockingIOError:
            return
        self.poll.unregister(self.exec_fd)
        os.close(self.exec_fd)
        self.exec_fd = -1
        if text:
            self.exec_error = text.decode("utf-8", "replace")
            return
        me = read_stat(self.me)
        self._write(
            "shim.json",
            {
                "protocol": PROTOCOL,
                "generation": self.spec["generation"],
                "shim_pid": self.me,
                "shim_start_time": me.start_time if me else 0,
                "boot_id": self.boot_id,
                "engine_pid": self.leader,
                "engine_start_time": self.leader_start,
                "started_at": time.time(),
                "marker": self.spec["marker"],
            },
        )

    # the loop

    def run(self) -> None:
        """Until the tree is empty and the record of it on disk. No error of one turn ends the shim."""
        self.start()
        while self.phase != "end" or (self.unwritten and not self.hurry):
            try:
                self._turn()
            except Exception:
                self.complaints += 1
                if self.complaints <= 100:
                    _tried(sys.excepthook, *sys.exc_info())
                time.sleep(BUSY_TICK_S)
        unlink("shim.sock")
        for _ in range(2 * CLIENTS):  # who connected before that is answered still
            if not self._listen(0):
                break

    def _turn(self) -> None:
        ending = self.phase != "end" and (self.exit is not None or self.phase == "kill")
        wait_s = BUSY_TICK_S if ending else TICK_S
        if self.phase == "run" and self.stop_at is not None:
            wait_s = min(wait_s, max(0.0, self.stop_at - time.monotonic()))
        self._listen(wait_s)
        self._reap()
        now = time.monotonic()
        if now >= self.tick_at:
            self.tick_at = now + TICK_S
            for name, record in list(self.unwritten.items()):
                self._write(name, record)
            self._rotate()
        self._advance(now)

    def _listen(self, wait_s: float) -> bool:
        """Whatever calls within `wait_s`; False where nothing did."""
        ready = self.poll.poll(wait_s * 1000)
        self.turn_at = time.monotonic()
        for fd, events in ready:
            if fd == self.wake:
                os.read(fd, 4096)
            elif fd == self.exec_fd:
                self._exec_reported()
            elif fd == self.listener.fileno():
                self._accept()
            elif fd in self.clients:
                self._serve(self.clients[fd], events)
        return bool(ready)

    def _reap(self) -> None:
        """Collect every dead child; look at the leader's session first, while its number is still taken."""
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if self.leader and self.exit is None and os.waitid(os.P_PID, self.leader, ended) is not None:
            self._look()
        while not self.childless:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            if pid == self.leader and self.exit is None:
                self.poll.unregister(self.leader_fd)
                if self.exec_fd >= 0:
                    self._exec_reported()
                if self.exec_error is not None:
                    self._record_exit(exec_error=self.exec_error)
                elif os.WIFSIGNALED(status):
                    self._record_exit(number=os.WTERMSIG(status))
                else:
                    self._record_exit(code=os.WEXITSTATUS(status))

    def _advance(self, now: float) -> None:
        if self.phase == "run":
            if self.exit is not None:
                self.phase, self.phase_end = "term", now + LEFTOVER_GRACE_S
                for process in self._look():
                    send(process.pid, process.start_time, signal.SIGTERM)
            elif self.asked and self.stop_at is None:
                self.stop_at = now + self.spec["term_grace_s"]
                self._signal_leader(signal.SIGTERM)
            elif self.stop_at is not None and now >= self.stop_at:
                self._kill(now)
            elif now >= self.look_at:
                self._look()
                self.look_at = now + max(TICK_S, LOOK_SHARE * (time.monotonic() - now))
        if self.phase in ("term", "kill"):
            if self.childless and not self._look(marked=True):
                self._finish()
            elif now >= self.phase_end and self.phase == "term":
                self._kill(now)
            elif now >= self.phase_end:
                self.survivors = self._look(marked=True)
                self._finish()
            elif self.phase == "kill":
                for process in self._look(marked=self.childless):
                    if send(process.pid, process.start_time, signal.SIGKILL):
                        self.killed[process.key] = process.name

    def _kill(self, now: float) -> None:
        if self.phase in ("run", "term"):
            self.phase, self.phase_end = "kill", now + EMPTY_CAP_S

    def _signal_leader(self, number: int) -> bool:
        if self.exit is not None or self.leader_fd < 0:
            return False
        return _tried(signal.pidfd_send_signal, self.leader_fd, number)

    def _look(self, marked: bool = False) -> list[Stat]:
        """The living members, noted. `marked`: look into the environment of all others, too."""
        table = {p.pid: p for p in processes() if p.pid != self.me}

        def own(p: Stat) -> bool:
            return (
                p.ppid == self.me
                or (self.session != 0 and p.session == self.session)
                or p.key in self.known
                or (marked and carries(p, self.spec["marker"]))
            )

        self.living = living = closure(table, own)
        self.known = frozenset(p.key for p in living)
        if self.exit is not None and not any(p.session == self.session for p in living):
            self.session = 0  # the number of an empty session can come back as somebody else's
        self.looked_at = time.monotonic()
        return living

    # records

    def _record_exit(
        self, code: int | None = None, number: int | None = None, exec_error: str | None = None
    ) -> None:
        self.exit = {
            "protocol": PROTOCOL,
            "generation": self.spec["generation"],
            "code": code,
            "signal": number,
            "at": time.time(),
            "exec_error": exec_error,
            "emptied": False,
        }
        self._write("exit.json", self.exit)

    def _finish(self) -> None:
        if self.exit is None:
            self._record_exit()
        assert self.exit is not None
        emptied = not self.survivors
        emptied_at = time.time() if emptied else None
        self.phase = "end"
        for client in list(self.clients.values()):
            if client.waits is not None:
                self._answer(client, self._kill_reply(client.waits))
        self.exit = {
            **self.exit,
            "emptied": emptied,
            "emptied_at": emptied_at,
            "leftovers": [named(pid, n) for (pid, _), n in self.killed.items() if pid != self.leader],
            "survivors": [named(p.pid, p.name) for p in self.survivors],
            "tmpdir_removed": self._remove_tmpdir(),
        }
        self._write("exit.json", self.exit)

    def _remove_tmpdir(self) -> bool:
        if not self.spec["tmpdir"]:
            return True
        inside = os.path.join(os.path.realpath(self.spec["tmpdir"]), "")
        for kept in (".", self.spec["log"], self.spec["env"].get("HOME", "/")):
            if os.path.join(os.path.realpath(kept), "").startswith(inside):
                return False
        return remove_tree(self.spec["tmpdir"])

    def _write(self, name: str, record: dict[str, Any]) -> None:
        self.unwritten.pop(name, None)
        try:
            write_record(name, record)
        except FileNotFoundError:
            pass  # the folder itself is gone: nobody can want the record
        except OSError:
            self.unwritten[name] = record

    def _rotate(self) -> None:
        """Copy the log to LOG.1 and truncate it; of a flood between two looks keep the last 2 × the limit."""
        limit = self.spec["log_max_bytes"]
        if self.log_fd < 0 or limit <= 0:
            return
        size = os.fstat(self.log_fd).st_size
        if size <= limit:
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            old = os.open(self.spec["log"] + ".1", flags, 0o600)
            try:
                at = max(0, size - 2 * limit)
                end = size + limit
                while at < end and (part := os.pread(self.log_fd, 256 * 1024, at)):
                    at += os.write(old, part)
            finally:
                os.close(old)
        except OSError:
            if size <= 2 * limit:  # a full disk: the log may grow a little, not for ever
                return
        os.ftruncate(self.log_fd, 0)

    # the socket

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:
            time.sleep(BUSY_TICK_S)
            return
        if len(self.clients) >= CLIENTS:
            self._drop(min(self.clients.values(), key=lambda c: (c.waits is not None, c.used)))
        sock.setblocking(False)
        self.clients[sock.fileno()] = Client(sock)
        self.poll.register(sock, select.POLLIN)

    def _serve(self, client: Client, events: int) -> None:
        client.used = time.monotonic()
        try:
            part = client.sock.recv(LINE_BYTES) if events & ~select.POLLOUT else None
        except BlockingIOError:
            part = None
        except OSError:
            self._drop(client)
            return
        client.ended = client.ended or part == b""
        *lines, client.got = (client.got + (part or b"")).split(b"\n")
        for line in lines:
            reply = self._handle(client, line)
            if reply is not None:
                self._answer(client, reply)
        if len(client.got) > LINE_BYTES or events & (select.POLLHUP | select.POLLERR):
            self._drop(client)
        else:
            self._flush(client)

    def _answer(self, client: Client, reply: Mapping[str, Any]) -> None:
        client.pending += json.dumps(reply).encode() + b"\n"
        client.waits = None
        self._flush(client)

    def _flush(self, client: Client) -> None:
        fd = client.sock.fileno()
        if fd not in self.clients:
            return
        try:
            client.pending = client.pending[client.sock.send(client.pending) :]
        except BlockingIOError:
            pass
        except OSError:
            client.ended, client.pending, client.waits = True, b"", None
        done = client.ended and not client.pending and client.waits is None
        if done or len(client.pending) > PENDING_BYTES:
            self._drop(client)
            return
        wanted = 0 if client.ended else select.POLLIN
        self.poll.modify(fd, wanted | (select.POLLOUT if client.pending else 0))

    def _drop(self, client: Client) -> None:
        if self.clients.pop(client.sock.fileno(), None) is not None:
            self.poll.unregister(client.sock)
            client.sock.close()

    def _handle(self, client: Client, line: bytes) -> dict[str, Any] | None:
        """The reply to one request; None where it comes later."""
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            return {"ok": False, "error": "a request is one JSON object on one line"}
        if request.get("protocol") != PROTOCOL:
            return {"ok": False, "error": f"this shim speaks protocol {PROTOCOL}", "protocol": PROTOCOL}
        op = request.get("op")
        if op == "status":
            if self.looked_at < self.turn_at:  # a flood of questions costs one look a turn
                self._look()
            members = [named(p.pid, p.name) for p in self.living]
            head = {"ok": True, "protocol": PROTOCOL, "engine_pid": self.leader or None}
            return {**head, "members": members, "exit": self.exit}
        if op == "signal":
            number = request.get("signal")
            if type(number) is not int or number not in signal.valid_signals():
                return {"ok": False, "error": f"no such signal: {str(number)[:40]}"}
            if not self._signal_leader(number):
                return {"ok": False, "error": "the engine has exited"}
            return {"ok": True}
        if op == "kill":
            if self.phase == "end":
                self.hurry = True
                return self._kill_reply(time.monotonic())
            client.waits = time.monotonic()
            self._kill(time.monotonic())
            return None
        return {"ok": False, "error": f"unknown op: {str(op)[:40]}"}

    def _kill_reply(self, since: float) -> dict[str, Any]:
        return {
            "ok": True,
            "killed": [named(pid, name) for (pid, _), name in self.killed.items()],
            "survivors": [named(p.pid, p.name) for p in self.survivors],
            "seconds": round(time.monotonic() - since, 3),
        }


def read_spec(path: str) -> dict[str, Any]:
    """The specification, whole and of the right types. Raises OSError or ValueError saying what is wrong."""
    with open(path, encoding="utf-8") as f:
        spec = json.loads(f.read(SPEC_BYTES))
    if not isinstance(spec, dict):
        raise ValueError("not a JSON object")
    if spec.get("protocol") != PROTOCOL:
        raise ValueError(f"protocol {spec.get('protocol')!r}, this shim speaks {PROTOCOL}")
    spec = {"tmpdir": None, "log_max_bytes": 0, "term_grace_s": 10, **spec}
    right = {
        "argv": isinstance(spec.get("argv"), list)
        and len(spec["argv"]) > 0
        and all(isinstance(a, str) for a in spec["argv"]),
        "env": isinstance(spec.get("env"), dict) and all(isinstance(v, str) for v in spec["env"].values()),
        "cwd": isinstance(spec.get("cwd"), str),
        "log": isinstance(spec.get("log"), str),
        "marker": isinstance(spec.get("marker"), str) and spec["marker"] != "",
        "tmpdir": spec["tmpdir"] is None or isinstance(spec["tmpdir"], str),
        "log_max_bytes": isinstance(spec["log_max_bytes"], int),
        "term_grace_s": isinstance(spec["term_grace_s"], (int, float)) and 0 <= spec["term_grace_s"] <= 86400,
        "generation": "generation" in spec,
    }
    wrong = [key for key, ok in right.items() if not ok]
    if wrong:
        raise ValueError(f"missing or of the wrong type: {', '.join(wrong)}")
    return spec


def lock_folder() -> bool:
    """Only one shim to a folder; the one before may still be on its way out."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    end = time.monotonic() + LOCK_CAP_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(BUSY_TICK_S)
        except OSError:
            return True  # a file system without locks


def main(folder: str) -> int:
    """0 when the tree is gone and said so, 1 where another shim holds the folder."""
    os.chdir(folder)
    for number in (signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_NAME, b"llmserve-shim", 0, 0, 0)
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        say("not a subreaper: orphans are found by session and marker alone")
    if not lock_folder():
        say("another shim holds this folder")
        return 1
    try:
        spec = read_spec("spec.json")
    except (OSError, ValueError, RecursionError) as e:
        record = {"protocol": PROTOCOL, "generation": None, "code": None, "signal": None, "at": time.time()}
        ended = {"emptied": True, "emptied_at": time.time(), "leftovers": [], "survivors": []}
        write_record("exit.json", {**record, "exec_error": f"spec.json: {e}", **ended})
        return 0
    Shim(spec).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
