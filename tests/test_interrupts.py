import signal
import threading

import pytest

from vcotta.interrupts import interrupt_held_back

pytestmark = pytest.mark.usefixtures("usual_ctrl_c")


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def fail() -> None:
    raise ValueError("mine")


def take(steps, told) -> None:
    """Take steps with interrupts held back, and write down after each whether one came."""
    with interrupt_held_back() as interrupted:
        for step in steps:
            step()
            told.append(interrupted())


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    told: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        take([lambda: None, press, lambda: None], told)
    assert told == [False, True, True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_does_not_wait() -> None:
    told: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        take([press, press, lambda: None], told)
    assert told == [True]


def test_an_error_of_the_block_is_not_hidden_by_the_interrupt() -> None:
    with pytest.raises(ValueError, match="mine"):
        take([press, fail], [])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_not_wanted_is_not_held_back() -> None:
    with interrupt_held_back(False) as interrupted:
        with pytest.raises(KeyboardInterrupt):
            press()
        assert not interrupted()


def test_a_handler_of_ones_own_stays() -> None:
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("mine"))
    told: list[bool] = []
    try:
        take([press], told)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == ["mine"]
    assert told == [False]


def test_another_thread_than_the_main_one_is_left_alone() -> None:
    seen = []

    def work() -> None:
        with interrupt_held_back() as interrupted:
            seen.append((interrupted(), signal.getsignal(signal.SIGINT) is signal.default_int_handler))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]
