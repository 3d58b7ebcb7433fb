"""`finetune`: trains a pretrained encoder on labelled texts for a task."""

import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

from keras.callbacks import Callback

from keras_bert.arguments import (
    Aggregate,
    Count,
    Data,
    Delimiter,
    Length,
    Normalization,
    Path,
    Pooling,
    Positive,
    PositiveOrZero,
    Seed,
    Share,
    Weights,
    changed,
)
from keras_bert.files.atomic import atomic_folder
from keras_bert.inference.fine_tuned import FineTuned
from keras_bert.tasks import Task
from keras_bert.training import loop
from keras_bert.training.checkpoints import Progress
from keras_bert.training.options import REMEMBERED, Options
from keras_bert.training.prepare import Prepared, prepare
from keras_bert.training.report import write_report
from keras_bert.training.run import Output, enable_determinism


def finetune(train: Data, valid: Data | None = None, *, model: Path | None = None, output: Path,
             task: Literal["intent", "classify", "multilabel", "regress", "tag", "joint", "span", "choice", "embed",
                           "rerank"] | str | Task | type[Task] = "intent",
             valid_share: Share | None = None, data_format: str | None = None, text_column: str = "text",
             text_pair_column: str | None = None, label_column: str = "label", label_columns: list[str] | None = None,
             label_delimiter: Delimiter | None = None, out_of_scope_label: str | None = None, epochs: Count = 3,
             batch_size: Count = 32, gradient_accumulation_steps: Count = 1, learning_rate: Positive | None = None,
             warmup_ratio: Share = 0.1, weight_decay: PositiveOrZero = 0.01, dropout: Share | None = None,
             max_length: Length | None = None, doc_stride: Count | None = None, aggregate: Aggregate | None = None,
             max_windows: Count | None = None, features: str | None = None, few_shot: bool = False,
             loss: Literal["multiple_negatives_ranking", "cosent", "cosine_similarity"] | None = None,
             pooling: Pooling | None = None, normalize: bool | None = None, normalization: Normalization | None = None,
             query_prompt: str | None = None, document_prompt: str | None = None, mine_negatives: Path | None = None,
             teacher: Path | None = None, layers: Count | None = None, unlabelled: Path | None = None,
             early_stopping_patience: Count | None = None, class_weights: Weights | None = None,
             freeze_blocks: Count | None = None, lora_rank: Count | None = None,
             dtype: Literal["float32", "mixed_bfloat16"] = "float32", pack: bool = False,
             devices: list[str] | None = None, seed: Seed = 0, save_steps: Count = 500, log_dir: Path | None = None,
             callbacks: Sequence[Callback] | None = None, deterministic: bool = False,
             overwrite: bool = False) -> FineTuned:
    """Fine-tunes a pretrained encoder for a task and writes the model to a folder (Devlin et al., 2018, section 4 and
    appendix A.3).

    Example:
        model = finetune([("lights on", "on"), ("lights off", "off")], [("switch it on", "on")], model="minilm",
                         output="my_model")
        model.predict(["turn on the light"])[0].label

    A report on the data is printed before training, with warnings about likely mistakes: texts that are in both files,
    equal texts with different labels, long texts, words that the vocabulary lacks.

    The model of the epoch with the best score on `valid` is kept, or of several such epochs the one with the lowest
    loss. If a run is stopped or killed, run the same command again with the same versions (see `Checkpoints`): it
    resumes from its last checkpoint. The final weights are bit-identical on one CPU, and on a GPU with `deterministic`.
    Checkpoints are kept in `output`.checkpoints until training finishes.

    `train` and `valid` can also be data in memory: a pandas DataFrame, a Hugging Face `Dataset`, or a list of dicts
    from column names to values or of tuples. Tuples are (text, label) or (text, text_pair, label) for intent, classify,
    multilabel and regress, (words, tags) for tag, (question, context, answers) for span, (prompt, choices, label) for
    choice, and (text, text_pair) or (text, text_pair, label) for embed and rerank. The label of multilabel is a list;
    `answers` is a dict of two lists, `text` and `answer_start`, as in Hugging Face's SQuAD.

    Args:
        train: Training file: .tsv or .csv with a header, .jsonl, .json or .parquet; CoNLL's format for tag and joint,
            SQuAD's .json for span. Its labels are those of the model.
        valid: Validation file in the same format, scored after each epoch. Default: a share of the training file.
        model: Pretrained encoder: a folder or a name, see keras-bert presets. The head of a model for the same task and
            labels is kept; otherwise a line says that the head is new, and why.
        output: Folder to write: the model, its vocabulary, labels and settings, metrics.json, a model card
            (README.md), and pictures if matplotlib is installed.
        task: classify: a label for each text or pair of texts; intent: the same, and with an out_of_scope_label, a
            threshold below which a text is out of scope; multilabel: any number of labels, with a threshold for each,
            chosen on the validation file; regress: a number; tag: entities; joint: a label and entities; span: answers
            in a context; choice: the best of several endings; embed: a vector, similar for similar texts; rerank: how
            relevant a document is to a query. Or the name of a task of your own, whose module --import names.
        valid_share: Without valid: share of the different texts of the training file to hold out for validation, with
            all labels in proportion; for span, of the contexts with their questions. Default: 0.1.
        data_format: Format of a published data set: cola, sst2, mrpc, klue-nli, conll, swag and so on. Default: by the
            file's suffix.
        text_column: Column of the text.
        text_pair_column: Column of the second text. Default: text_pair, if there is such a column.
        label_column: Column of the label. For multilabel: of the labels, a list, or a text with commas between them;
            default: label, or labels if there is no such column.
        label_columns: For multilabel: columns that are 1 if the text has the label of this name, otherwise 0, instead
            of label_column.
        label_delimiter: For multilabel: character between labels in a text. Default: comma.
        out_of_scope_label: Label of the texts in the validation file that are out of scope; they choose the threshold
            of an intent model and are not scored otherwise. Without such texts, there is no threshold.
        epochs: Passes over the training file.
        batch_size: Texts per batch, or windows where texts are split into windows. A batch is a step.
        gradient_accumulation_steps: Batches per step, in the memory of one: the gradient is that of one batch of all
            their texts. Losses that compare the texts of a batch compare only those of batch_size. The last step of an
            epoch has the batches that are left.
        learning_rate: Peak learning rate. Default: the preset's, 2e-4 for minilm, see keras-bert presets; 5e-5 for
            folders and other weights, for embed, and with few_shot.
        warmup_ratio: Share of the steps in which the learning rate rises.
        weight_decay: Decoupled weight decay; biases and layer norms do not decay.
        dropout: Dropout rate of the head's input, if it has one. Default: 0.2 for classes, 0.1 for other tasks.
        max_length: Longest input in tokens, [CLS] and [SEP] included; longer texts are cut, or split into windows of
            this length if there is a doc_stride. Default: 384 for span, 128 for other tasks, or the encoder's positions
            if there are fewer; for embed, as the pretrained model says if it is one for embeddings.
        doc_stride: Split longer texts into windows, with this number of tokens from the start of one window to the
            start of the next; of a pair, the second text is split. Default: 128 for span, half of a window for tag, no
            windows for other tasks.
        aggregate: With doc_stride: the answer is made from the mean or the maximum of the outputs of a text's windows.
            Default: max for rerank, mean for other tasks.
        max_windows: With doc_stride, for span and for tag: maximum number of windows of a text, which is cut after
            them. Default: no limit.
        features: For tag: train a BiLSTM on the features of the frozen encoder, concat-last-4 for example, see
            keras-bert features.
        few_shot: For intent and classify, with a few texts per label: train the encoder on pairs of texts of the same
            label, then classify its embeddings by a logistic regression (SetFit).
        loss: For embed: multiple_negatives_ranking for pairs of an anchor and its positive, perhaps with a negative;
            cosent, the default, or cosine_similarity for scored pairs; one of the three for labelled texts, by default
            cosent.
        pooling: For embed: the vector of a text is the mean or the maximum of its tokens' vectors, or that of [CLS].
            Default: as the pretrained model says, otherwise mean.
        normalize: For embed: divide vectors by their length. Default: as the pretrained model says if it is one for
            embeddings, otherwise yes.
        normalization: NFC composes texts in NFD, as macOS writes them, and the model's tokenizer then always does; none
            does not. Default: as the pretrained model says.
        query_prompt: For embed: text to put before each text that has a text_pair without a label, "query: " for
            example. The model keeps it as its prompt query. Default: as the pretrained model says, otherwise none.
        document_prompt: The same for each text_pair and negative, and for the model's prompt document.
        mine_negatives: For rerank: a model for embeddings, a folder or a name; queries without a negative get those
            documents of the file as negatives that are nearest to them, and are not relevant.
        teacher: For intent, classify and multilabel: a folder that finetune wrote for the same labels, instead of
            model. The new model begins as layers of its blocks with its head, and learns its probabilities on train and
            unlabelled beside the labels (distillation).
        layers: With teacher: number of blocks of the new model.
        unlabelled: With teacher: file of texts without labels, .txt with one per line, or a table as train.
        early_stopping_patience: Stop after this many epochs without a better score.
        class_weights: For intent and classify: balanced weights each class by the inverse of its frequency. Or the
            weights themselves, from labels to numbers: a dict, or a .json file with an object; other labels have the
            weight 1. With few_shot, the weights are those of the logistic regression.
        freeze_blocks: Freeze the embeddings and this many encoder blocks.
        lora_rank: Train low-rank additions of this rank (LoRA) instead of the encoder. The written model is plain.
        dtype: mixed_bfloat16 computes in bfloat16.
        pack: For intent, classify, multilabel, regress and rerank: put several texts into each row of max_length
            tokens, so that all batches have one shape, which XLA compiles once.
        devices: Split batches across these TensorFlow devices: GPU:0,GPU:1. A last batch that is not full is skipped.
        seed: Seed of the head's weights, the order of the texts, the dropout, and the choice of held-out texts.
        save_steps: Steps between two checkpoints; there is also one after each epoch.
        log_dir: Folder for TensorBoard logs.
        callbacks: Keras callbacks that observe the run, for Weights & Biases or MLflow for example. They get the hooks
            of training, not those of test and predict; in a resumed run, those of the steps that remain. on_epoch_end
            gets the validation scores as val_loss and so on. A callback must not change the training: see
            early_stopping_patience, learning_rate and warmup_ratio.
        deterministic: Make training reproducible on a GPU too, slower and without XLA; on a CPU it always is. This
            calls enable_determinism, which holds for the rest of the process.
        overwrite: Replace output, and the checkpoints of another run.

    Returns:
        the `FineTuned` model.

    Raises:
        InputError: names the file, row and column, or the argument.
        Stopped: Ctrl-C or SIGTERM; everything is saved.
    """
    options, started = Options.checked(finetune, dict(locals())), time.monotonic()
    given = changed(finetune, options.as_json())
    if deterministic:
        enable_determinism()
    folder = Output(options.output, overwrite, options.files())
    prepared = prepare(options)
    checkpoints, is_written = folder.open(prepared.run)
    if is_written:
        fine_tuned = FineTuned.load(options.output)
    else:
        for line in prepared.lines:
            print(line, file=sys.stderr)
        progress = loop.train(prepared, checkpoints)
        fine_tuned = _write(prepared, progress, given, started)
    checkpoints.remove()
    return fine_tuned


def _write(prepared: Prepared, progress: Progress, given: dict[str, Any], started: float) -> FineTuned:
    """Writes the folder of the trained model; returns the model that it holds."""
    options, model = prepared.options, prepared.model
    model.optimizer, model.compiled = None, False  # not saved: the optimizer would take two thirds of the file
    model = prepared.strategy.finished(model, options.batch_size)
    remembered = {name: given[name] for name in REMEMBERED if name in given}
    fine_tuned = FineTuned(model, prepared.tokenizer, prepared.task, remembered)
    with atomic_folder(options.output, options.overwrite) as new:
        fine_tuned.save_files(new)
        if options.lora_rank or options.devices or options.pack:  # what is returned is plain, padded, on one device
            fine_tuned = FineTuned.load(new)
        return write_report(new, fine_tuned, prepared.valid, progress, given, {
            "base_model": prepared.base_model, **prepared.strategy.description, **prepared.run,
            "train_examples": prepared.report["train"], "data": prepared.report,
            "seconds": round(time.monotonic() - started, 1)})
