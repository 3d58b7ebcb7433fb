"""Shows Keras's section "Call arguments" of a layer's docstring as it shows "Args"."""

import griffe


class CallArguments(griffe.Extension):
    def on_object(self, *, obj, **_):
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nCall arguments:\n", "\nOther Args: Call arguments\n")
