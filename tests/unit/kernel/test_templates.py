"""Templates of log lines."""

from poise.kernel.templates import MOST, MOST_WORDS, Templates


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
