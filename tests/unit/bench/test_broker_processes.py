"""Local brokers are found by the ports they listen on."""

from __future__ import annotations

import os
import socket

from chronik.bench.broker_processes import BrokerProcesses, is_local, listening_pids, usage_of


def test_the_process_behind_a_listening_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listening_pids([("127.0.0.1", server.getsockname()[1])]) == {os.getpid()}


def test_a_port_that_nobody_listens_on_has_no_process() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert listening_pids([("127.0.0.1", bound.getsockname()[1])]) == set()


def test_an_address_of_another_machine_is_not_looked_for_here() -> None:
    assert not is_local("192.0.2.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listening_pids([("192.0.2.1", server.getsockname()[1])]) == set()


def test_cpu_and_memory_are_measured_from_the_beginning() -> None:
    processes = BrokerProcesses([os.getpid()])
    began = os.times()
    while os.times().user - began.user < 0.05:
        sum(range(10_000))
    assert processes.cpu_s() >= 0.03
    assert processes.peak_mb() > 1


def test_a_process_that_is_gone_is_left_out() -> None:
    assert usage_of(2**22 + 1) is None
    assert BrokerProcesses([2**22 + 1]).cpu_s() == 0


def test_the_near_end_of_a_connection_is_not_taken_for_a_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert listening_pids([("127.0.0.1", client.getsockname()[1])]) == set()
