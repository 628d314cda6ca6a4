"""FileCheck expectations on a string."""

from __future__ import annotations

import contextlib
import io
import textwrap

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts


def filecheck(text: str, checks: str) -> None:
    """Fails with FileCheck's own message if `text` does not match `checks`."""
    options = Options(match_filename="<checks>")
    parser = Parser(options, io.StringIO(textwrap.dedent(checks)), *pattern_for_opts(options))
    complaint = io.StringIO()
    with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(complaint):
        code = Matcher(options, FInput("<text>", text), parser).run()
    assert code == 0, f"{complaint.getvalue()}\n{text}"
