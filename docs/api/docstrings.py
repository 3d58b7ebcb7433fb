"""Shows Keras's section "Call arguments" of a docstring as it shows "Args", and examples as code."""

import re
import textwrap

import griffe


class Docstrings(griffe.Extension):
    def on_object(self, *, obj, **_):
        if obj.docstring:
            text = obj.docstring.value.replace("\nCall arguments:\n", "\nOther Args: Call arguments\n")
            obj.docstring.value = re.sub(r"^Example:\n((?: {4}.*\n)+)", _code, text, flags=re.MULTILINE)


def _code(example):
    return f"```python\n{textwrap.dedent(example[1])}```\n"
