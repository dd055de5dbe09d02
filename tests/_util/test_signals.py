import signal
import threading

import pytest

from vcotta._util.signals import interrupt_held_back


def fail() -> None:
    raise ValueError("mine")


def take(steps) -> list[bool]:
    """Take steps with interrupts held back; return after each whether an interrupt is waiting, also if it is raised."""
    waiting: list[bool] = []
    try:
        with interrupt_held_back() as interrupted:
            for step in steps:
                step()
                waiting.append(interrupted())
    except KeyboardInterrupt as interrupt:
        interrupt.args = (waiting,)
        raise
    return waiting


def test_an_interrupt_waits_for_the_end_of_the_block(press_ctrl_c) -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        take([lambda: None, press_ctrl_c, lambda: None])
    assert raised.value.args == ([False, True, True],)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_does_not_wait(press_ctrl_c) -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        take([press_ctrl_c, press_ctrl_c, lambda: None])
    assert raised.value.args == ([True],)


def test_an_error_of_the_block_is_not_hidden_by_the_interrupt(press_ctrl_c) -> None:
    with pytest.raises(ValueError, match="mine"):
        take([press_ctrl_c, fail])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_is_raised_at_once_where_holding_back_is_not_wanted(press_ctrl_c) -> None:
    with interrupt_held_back(False) as interrupted:
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
        assert not interrupted()


def test_the_handler_of_a_program_stays(press_ctrl_c) -> None:
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append("mine"))
    assert take([press_ctrl_c]) == [False]
    assert heard == ["mine"]


def test_an_ignored_interrupt_stays_ignored(press_ctrl_c) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert take([press_ctrl_c]) == [False]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("press_ctrl_c")
def test_another_thread_than_the_main_one_is_left_alone() -> None:
    seen = []

    def work() -> None:
        with interrupt_held_back() as interrupted:
            seen.append((interrupted(), signal.getsignal(signal.SIGINT) is signal.default_int_handler))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]
