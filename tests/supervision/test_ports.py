"""Who listens and what is free, with real sockets."""

import os
import socket
import subprocess
import sys

import pytest

from orchestrator.errors import Exit, LlmserveError
from orchestrator.supervisor import ports


def listen(address="127.0.0.1", family=socket.AF_INET, v6only=None):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if v6only is not None:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
    s.bind((address, 0))
    s.listen()
    return s, s.getsockname()[1]


@pytest.fixture
def stranger():
    """Another process that listens; ends with its stdin."""
    program = (
        "import socket,sys; s=socket.create_server(('127.0.0.1',0));"
        "print(s.getsockname()[1],flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-I", "-S", "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        yield child.pid, int(child.stdout.readline())
        child.stdin.close()


def test_a_listener_is_found_with_its_owner(stranger):
    pid, port = stranger
    (mine,) = ports.listeners([pid])
    assert (mine.address, mine.port, mine.pid) == ("127.0.0.1", port, pid)
    assert mine.inode > 0
    assert mine in ports.listeners()
    assert mine not in ports.listeners([os.getpid()])
    assert ports.listeners([]) == []


def test_a_port_is_owned_only_by_who_listens_on_it(stranger):
    pid, port = stranger
    assert ports.owned(port, [pid])
    assert not ports.owned(port, [os.getpid()])
    assert not ports.owned(port + 1, [pid])
    assert not ports.owned(port, [])


def test_connections_are_no_listeners(stranger):
    pid, port = stranger
    with socket.create_connection(("127.0.0.1", port)):
        assert [n.port for n in ports.listeners([pid])] == [port]
        assert not ports.owned(port, [os.getpid()])


@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::")],
)
def test_addresses_are_read_as_they_are(family, address):
    s, port = listen(address, family)
    with s:
        assert [n.address for n in ports.listeners([os.getpid()]) if n.port == port] == [address]


@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")],
)
def test_a_port_with_a_listener_is_not_free_nor_with_one_on_the_wildcard(family, address):
    s, port = listen(address, family)
    with s:
        for host in ("127.0.0.1", "0.0.0.0", "localhost"):
            assert not ports.is_free(host, port), host
    assert ports.is_free("127.0.0.1", port)


def test_an_ipv6_only_listener_does_not_take_the_ipv4_port():
    s, port = listen("::1", socket.AF_INET6, v6only=1)
    with s:
        assert ports.is_free("127.0.0.1", port)
        assert not ports.is_free("::1", port)


def test_a_port_in_time_wait_is_free():
    s, port = listen()
    with s:
        client = socket.create_connection(("127.0.0.1", port))
        server, _ = s.accept()
        server.close()  # the one that closes first waits
        client.close()
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("127.0.0.1", port))
    assert ports.is_free("127.0.0.1", port)


def test_the_first_free_port_skips_taken_and_held_ones():
    first = ports.first_free("127.0.0.1", 20000)
    assert first >= 20000
    second = ports.first_free("127.0.0.1", first, {first})
    assert second > first
    with socket.create_server(("127.0.0.1", first)):
        assert ports.first_free("127.0.0.1", first) > first


def test_no_free_port_is_refused():
    with pytest.raises(LlmserveError) as e:
        ports.first_free("127.0.0.1", 65530, range(65530, 65536))
    assert (e.value.code, e.value.exit_code) == ("no_free_port", Exit.REFUSED)


def test_the_holder_is_named(stranger):
    pid, port = stranger
    name = ports.holder(port)
    assert name.endswith(f"(pid {pid})")
    assert "python" in name


def test_a_holder_that_cannot_be_seen_is_unknown(stranger, monkeypatch):
    _, port = stranger
    monkeypatch.setattr(ports, "_socket_inodes", lambda pid: set())
    assert ports.holder(port) == "a process that cannot be seen from here"


def test_a_port_nobody_holds_has_no_holder():
    s, port = listen()
    s.close()
    assert ports.holder(port) is None


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_a_usage_error(port):
    with pytest.raises(LlmserveError) as e:
        ports.is_free("127.0.0.1", port)
    assert e.value.exit_code == Exit.USAGE


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "a" * 300])
def test_an_address_of_another_machine_is_a_usage_error(host):
    with pytest.raises(LlmserveError) as e:
        ports.is_free(host, 20000)
    assert (e.value.code, e.value.exit_code) == ("bad_host", Exit.USAGE)


def test_a_port_is_chosen_only_where_those_above_it_are_free_too():
    s, port = listen()
    with s:
        start = port - 2
        found = ports.first_free("127.0.0.1", start, above=[2, 1])
        assert found > port
        assert ports.first_free("127.0.0.1", found, {found + 2}, above=[1, 2]) > found
        assert ports.first_free("127.0.0.1", found, {found + 3}, above=[1, 2]) == found


def test_no_port_is_chosen_whose_companions_would_be_none():
    with pytest.raises(LlmserveError) as raised:
        ports.first_free("127.0.0.1", ports.LAST_PORT - 3, above=[4])
    assert (raised.value.code, raised.value.exit_code) == ("no_free_port", Exit.REFUSED)


def test_ports_are_chosen_apart_and_those_of_one_base_in_their_places():
    wanted = {"http": None, "nccl": None, "dist": None, "dist+1": None, "dist+5": None}
    start = ports.first_free("127.0.0.1", 20000, above=range(1, 30))
    chosen = ports.choose("127.0.0.1", wanted, start, {start, start + 4})
    assert list(chosen) == list(wanted)
    assert (chosen["http"], chosen["nccl"]) == (start + 1, start + 2)
    # 3 and 3+1 will not do: 4 is taken
    assert (chosen["dist"], chosen["dist+1"], chosen["dist+5"]) == (start + 5, start + 6, start + 10)


def test_a_fixed_port_stays_and_no_other_is_chosen_on_it():
    start = ports.first_free("127.0.0.1", 21000, above=range(1, 10))
    chosen = ports.choose("127.0.0.1", {"nccl": None, "http": start, "dist": None, "dist+1": None}, start)
    assert chosen == {"nccl": start + 1, "http": start, "dist": start + 2, "dist+1": start + 3}
