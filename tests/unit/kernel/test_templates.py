"""Templates of log lines."""

from poise.kernel.templates import MOST, MOST_SOURCES, MOST_WORDS, SETTLED, Novelty, Templates


def test_lines_that_differ_in_numbers_ids_and_paths_are_one() -> None:
    templates = Templates()
    lines = [
        "loss 0.31 at step 1300",
        "loss 0.29 at step 1400",
        "[rank3]: NCCL timeout after 1800000 ms on 10.1.1.3:4444",
        "[rank12]: NCCL timeout after 1800000 ms on 10.1.1.9:4444",
        "RuntimeError: CUDA error: out of memory",
    ]
    assert [templates.take(line).count for line in lines] == [1, 2, 1, 2, 1]
    assert [template.text for template in templates.all()] == [
        "<*> NCCL timeout after <*> ms on <*>",
        "loss <*> at step <*>",
        "RuntimeError: CUDA error: out of memory",
    ]


def test_words_in_which_lines_of_one_template_differ_are_masked() -> None:
    templates = Templates()
    templates.take("worker alpha has joined the group")
    assert templates.take("worker beta has joined the group").text == "worker <*> has joined the group"


def test_lines_that_agree_in_too_little_are_two() -> None:
    templates = Templates()
    templates.take("job started on host alpha")
    assert templates.take("job ended with error beta").count == 1


def test_what_is_kept_has_a_limit() -> None:
    templates = Templates()
    for number in range(3 * MOST):
        templates.take(" ".join(chr(97 + number // 26**place % 26) * 3 for place in range(4)))
    assert len(templates.all()) <= MOST
    assert len(templates.take("word " * 1000).words) == MOST_WORDS
    assert templates.take("").text == ""


def settled(novelty: Novelty, source: str = "train") -> Novelty:
    """A source of which only one template is known, for long enough."""
    told = [novelty.take(source, f"step {number} of 900 loss {number / 7:.3f}") for number in range(SETTLED + 1)]
    assert not any(told), "nothing is unusual before it is known what is usual"
    return novelty


def test_of_many_new_lines_the_first_is_told() -> None:
    novelty = settled(Novelty())
    lines = ["Traceback (most recent call last):", 'File "train.py", line 7, in step', "RuntimeError: NCCL timed out"]
    assert [novelty.take("train", line) for line in lines] == ["Traceback (most recent call last):", "", ""]
    assert settled(novelty).take("train", lines[2]) == "", "it is known by now"
    assert novelty.take("train", "loss is nan, the step is left out") != ""


def test_a_source_that_never_repeats_itself_tells_nothing() -> None:
    novelty = Novelty()
    words = ("alpha", "beta", "gamma", "delta", "epsilon")
    for number in range(3 * SETTLED):
        line = " ".join(words[number // 5**place % 5] * (place + 1) for place in range(number % 7 + 1))
        fresh = f"{chr(97 + number // 26 % 26)}{chr(97 + number % 26)}x said {line}"
        assert novelty.take("chat", fresh) == ""


def test_sources_are_told_apart_and_the_oldest_makes_room() -> None:
    novelty = settled(Novelty())
    assert novelty.take("other", "CUDA error") == ""
    for number in range(MOST_SOURCES - 2):
        novelty.take(f"s{number}", "hello")
    assert novelty.take("train", "CUDA error") == "CUDA error"
    for number in range(MOST_SOURCES):
        novelty.take(f"t{number}", "hello")
    assert novelty.take("train", "another error of CUDA") == "", "it was forgotten"
