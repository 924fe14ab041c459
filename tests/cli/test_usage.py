"""What commands say of how answers were computed."""

from kvpager.cli.usage import usage, usage_in_words
from kvpager.engine import Completion, FinishReason
from kvpager.engine.faults import Faults
from kvpager.engine.selection import Selection


def done(**more: object) -> Completion:
    return Completion(0, 0, 0, "", (), FinishReason.LENGTH, 5, 0, 0, **more)  # type: ignore[arg-type]


def test_the_rule_is_not_worth_a_word() -> None:
    assert usage_in_words([done(), done()]) == ""
    assert usage(done()) == {
        "attention": "exact",
        "oversized": False,
        "major_faults": 0,
        "fault_bytes": 0,
        "stalled_seconds": 0.0,
    }


def test_what_did_not_fit_and_what_is_approximate_is_said() -> None:
    big = done(is_oversized=True, faults=Faults(7, 1 << 20, 0.25))
    assert usage(big)["major_faults"] == 7
    assert usage_in_words([big, big, done()]) == (
        "; 2 did not fit on the device: 14 major faults, 2 MiB read below it, 0.5 s waited"
    )
    rough = done(attention="sinks-and-window:window=64,sinks=4")
    assert usage(rough)["attention"] == "sinks-and-window:window=64,sinks=4"
    assert usage_in_words([done(), rough]) == "; approximate attention: sinks-and-window:window=64,sinks=4"
    assert "skipped_mass" not in usage(rough)


def test_what_selective_attention_left_out_is_said() -> None:
    one = done(attention="selective:budget=64", selection=Selection(3, 0.6, 1000, 200))
    other = done(attention="selective:budget=64", selection=Selection(1, 0.4, 1000, 200))
    assert usage(one)["skipped_mass"] == 0.2
    assert (usage(one)["digest_bytes"], usage(one)["kept_row_bytes"]) == (1000, 200)
    assert usage_in_words([one, other, done()]) == (
        "; approximate attention: selective:budget=64, which left out an estimated 25.0% of the attention"
    )
