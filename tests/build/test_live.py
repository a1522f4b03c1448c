# SPDX-License-Identifier: Apache-2.0
"""The live display: on a terminal one line that is redrawn, elsewhere plain lines."""

import os
import pty
import subprocess


def on_a_terminal(tree, *arguments):
    """What a build writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(tree.command(*arguments), cwd=tree.folder, env=tree.environment(TERM="xterm"), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = b""
    while True:
        try:
            block = os.read(ours, 65536)
        except OSError:  # the other side was closed
            break
        if not block:
            break
        output += block
    os.close(ours)
    return process.wait(timeout=60), output.decode()


def test_a_terminal_shows_one_line_that_is_redrawn(tree):
    status, output = on_a_terminal(tree, "cubins")
    assert status == 0, output
    assert "\r\x1b[K" in output and "left: trace fake_d64 sm_80" in output
    assert "assemble  fake" not in output.replace("assemble fake", ""), output  # no plain lines
    assert output.count("\n") < 5, output


def test_elsewhere_there_are_plain_lines(tree):
    run = tree.good("cubins")
    assert "\x1b" not in run.out and len([line for line in run.out.splitlines() if line.startswith("[")]) == 9


def test_none_says_nothing_but_the_table(tree):
    assert tree.good("cubins", "progress=none").out == ""


def test_progress_counts_to_the_total(tree):
    lines = [line for line in tree.good("cubins", "-j1").out.splitlines() if line.startswith("[")]
    done = [int(line[1:].split("/")[0]) for line in lines]
    assert done == sorted(done) and done[-1] == 15 and all(line.startswith(("[ ", "[1")) and "/15] " in line for line in lines), lines
