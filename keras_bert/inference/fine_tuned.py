"""`FineTuned`: the model folder that `finetune` writes and `predict` reads."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from keras_bert import kernels
from keras_bert.arguments import Path
from keras_bert.export import export_litert, export_text_model
from keras_bert.export.litert import default_task
from keras_bert.files.atomic import atomic_folder
from keras_bert.files.paths import at
from keras_bert.inference.task_model import TaskModel
from keras_bert.layers.base import check_not_quantized
from keras_bert.models import BertEmbedder, load_model
from keras_bert.models.base import BertTask, check_names
from keras_bert.tasks import Encoded, Task, read_settings, run_model
from keras_bert.text import Tokenizer, load_tokenizer
from keras_bert.weights import load_pretrained, native, open_weights


@dataclasses.dataclass(frozen=True)
class FineTuned(TaskModel):
    """A fine-tuned model with everything that prediction needs: `FineTuned.load(folder).predict(["a text"])[0]`.

    Args:
        model: a head of `keras_bert.models`.
        tokenizer, task, columns: see `TaskModel`.
    """

    model: BertTask
    tokenizer: Tokenizer
    task: Task
    columns: dict[str, str | list[str]] = dataclasses.field(default_factory=dict)

    def save(self, folder: Path, *, overwrite: bool = False) -> None:
        """Writes the folder that `load` reads, atomically. Its model runs and trains anywhere: in the padded layout,
        with LoRA's updates added to the weights, and without frozen layers. `overwrite` replaces an existing folder.

        Raises:
            InputError: `folder` exists or cannot be written, or the model is quantized.
        """
        with atomic_folder(folder, overwrite) as new:
            self.save_files(new)

    def save_files(self, folder: Path) -> None:
        """Writes the files of `save` into an existing folder."""
        check_not_quantized(self.model, "save")
        native.write_model(self.model.rebuild(layout="padded", lora_rank=None, frozen=()), self.tokenizer, folder)
        self.save_settings(folder)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads the folder that `save` wrote. Raises an InputError for another folder."""
        model = load_model(folder, layout="padded" if kernels.prefers_few_shapes() else "unpadded")
        task, columns = read_settings(folder)
        with at(f"{folder}: labels.json or settings.json"):
            check_names(model, task.named, vars(task))
        (tokenizer := load_tokenizer(folder)).check_rows(folder, model.bert.config.vocab_size)
        return cls(model, tokenizer, task, columns)

    def export(self, path: Path, **options: Any) -> None:
        """Writes a SavedModel that takes strings and returns the model's answers, and needs only TensorFlow:
        `model.export("answers")`, then `tf.saved_model.load("answers")(["a text"])`.

        Args:
            path: folder to write.
            options: `max_length` (default: as in training), `dtype`, `jit_compile` and `overwrite`, see
                [`export_text_model`][keras_bert.export_text_model], which also says what each kind of model returns.

        Raises:
            InputError: `path` exists or cannot be written, or an option is out of its range.
        """
        export_text_model(self.model, self.tokenizer, path, self.task, **options)

    def export_litert(self, path: Path, **options: Any) -> None:
        """Writes a folder for LiteRT, which answers without TensorFlow: `model.export_litert("lite")`, then
        `keras_bert.LiteModel.load("lite").predict(["a text"])`.

        Args:
            path: folder to write.
            options: `dtype` and `overwrite`, see [`export_litert`][keras_bert.export_litert].

        Raises:
            InputError: see `export_litert`.
        """
        export_litert(self.model, self.tokenizer, path, self.task, columns=self.columns, **options)

    @property
    def runtime(self) -> str:
        return f"Keras {self.model.bert.compute_dtype}"

    def outputs(self, encoded: Encoded, batch_size: int | None = None) -> list:
        if batch_size is None and kernels.prefers_few_shapes():
            batch_size = 32
        return run_model(self.model, encoded.batched(self.tokenizer), batch_size)


def load_tuned(model: str, embedding: Mapping[str, Any]) -> FineTuned:
    """Returns the model of a folder that finetune wrote. Of anything else, or for arguments of a `BertEmbedder`, which
    replaces the head, returns an embedder with the weights and their prompts."""
    if native.has_settings(model) and not embedding:
        return FineTuned.load(model)
    source = open_weights(model, takes_texts=True)
    layout = "padded" if kernels.prefers_few_shapes() else "unpadded"
    embedder, tokenizer = load_pretrained(source, BertEmbedder, layout=layout, **embedding), source.needed_tokenizer()
    return FineTuned(embedder, tokenizer, default_task(embedder, tokenizer, source.settings))
