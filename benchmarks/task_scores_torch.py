"""`finetune` with the heads of PyTorch transformers, and with sentence-transformers for the task embed, for
`task_scores.py`.

Rows, targets, batches and scores come from `keras_bert`; the model and the training do not.
"""

import json
import os

import keras
import torch
import transformers
from torch.nn import functional

from keras_bert import find_pretrained
from keras_bert.data import UNLABELLED
from keras_bert.tasks import TASKS, run_model
from keras_bert.text import load_tokenizer

EPSILON, CLIP_NORM, WARMUP, WEIGHT_DECAY = 1e-6, 1.0, 0.1, 0.01  # as in keras_bert's `make_optimizer`


def cross_entropy(logits, targets):
    """Returns the mean cross-entropy over the labelled targets; logits float [..., classes], targets int [...]."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten().long(), ignore_index=UNLABELLED)


def squared_error(numbers, targets):
    return functional.mse_loss(numbers[:, 0], targets)


def cross_entropy_of_span(logits, targets):
    return sum(cross_entropy(logits[name], targets[name]) for name in targets) / len(targets)


class BertForJoint(transformers.BertPreTrainedModel):
    """JointBERT: a class of the text from the pooled output, and a tag of each token."""

    def __init__(self, config, tags):
        super().__init__(config)
        self.bert = transformers.BertModel(config)
        self.dropout = torch.nn.Dropout(config.classifier_dropout)
        self.classifier = torch.nn.Linear(config.hidden_size, config.num_labels)
        self.tagger = torch.nn.Linear(config.hidden_size, tags)
        self.post_init()

    def forward(self, **inputs):
        outputs = self.bert(**inputs)
        return {"label_logits": self.classifier(self.dropout(outputs.pooler_output)),
                "tag_logits": self.tagger(self.dropout(outputs.last_hidden_state))}


def sum_of_cross_entropies(logits, targets):
    return sum(cross_entropy(logits[name], targets[name]) for name in targets)


# Model class, loss and output width; None stands for the number of labels.
CLASSIFICATION = transformers.AutoModelForSequenceClassification, cross_entropy, None
HEADS = {
    "intent": CLASSIFICATION,
    "classify": CLASSIFICATION,
    "multilabel": (transformers.AutoModelForSequenceClassification, functional.binary_cross_entropy_with_logits, None),
    "regress": (transformers.AutoModelForSequenceClassification, squared_error, 1),
    "tag": (transformers.AutoModelForTokenClassification, cross_entropy, None),
    "span": (transformers.AutoModelForQuestionAnswering, cross_entropy_of_span, 2),
    "choice": (transformers.AutoModelForMultipleChoice, cross_entropy, 1),
    "joint": (BertForJoint, sum_of_cross_entropies, None),
}


class Model:
    """A transformers model with the call interface of `keras_bert` models."""

    def __init__(self, model):
        self.model = model

    def __call__(self, inputs):
        outputs = self.model(**_named(inputs))
        return outputs["logits"] if "logits" in outputs else dict(outputs)

    @torch.inference_mode()
    def predict_on_batch(self, inputs):
        return keras.tree.map_structure(torch.Tensor.numpy, self(inputs))


class Embedder(Model):
    """A SentenceTransformer with the call interface of `BertEmbedder`."""

    def __call__(self, inputs):
        texts = inputs["input_word_ids"].shape[1]
        outputs = self.model({name: tensor.flatten(0, 1) for name, tensor in _named(inputs).items()})
        return outputs["sentence_embedding"].unflatten(0, (-1, texts))


def _named(inputs):
    names = {"input_ids": "input_word_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    return {name: torch.tensor(inputs[key]) for name, key in names.items()}


def make_model(task, learned, folder):
    """Returns the torch module, and functions of inputs that return its outputs, and of these and the targets that
    return the loss."""
    if task == "embed":
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.losses import CoSENTLoss

        model, loss = SentenceTransformer(str(folder), device="cpu"), CoSENTLoss(lambda embeddings: {
            "sentence_embedding": embeddings})
        return model, Embedder(model), lambda embeddings, scores: loss(embeddings.unbind(1), scores)
    head, loss, width = HEADS[task]
    options = {"tags": len(learned.tags)} if task == "joint" else {}
    model = head.from_pretrained(folder, num_labels=width or len(learned.labels), classifier_dropout=learned.dropout,
                                 **options)
    return model, Model(model), loss


def finetune(train, valid, *, model, output, task, data_format, epochs, batch_size, learning_rate, dtype, seed):
    """Fine-tunes a model as `keras_bert.finetune` does; see there for the arguments. In its folder, writes only
    `metrics.json`, with the main score of all epochs and those of the best one that the task names."""
    torch.manual_seed(seed)
    folder, kind = find_pretrained(model), TASKS[task]
    tokenizer = load_tokenizer(folder)
    examples = kind.read(train, data_format=data_format)
    learned = kind.from_examples(train, examples, max_length=kind.length)
    valid_examples = kind.read(valid, data_format=data_format)
    encoded, valid_encoded = (learned.encode(some, tokenizer) for some in (examples, valid_examples))
    batches, valid_batches, main = (encoded.batched(tokenizer), valid_encoded.batched(tokenizer),
                                    learned.main_score(valid_examples))
    model, forward, loss_of = make_model(task, learned, folder)
    history = []
    for epoch in train_epochs(model, forward, loss_of, batches, epochs, batch_size, learning_rate, dtype, seed):
        history.append(learned.score(valid_encoded, run_model(forward, valid_batches, batch_size)))
        print(f"epoch {epoch + 1}: {main} {history[-1][main]:.4f}")
    os.makedirs(output)
    best = max(history, key=lambda scores: scores[main])
    with open(os.path.join(output, "metrics.json"), "w") as file:
        json.dump({name: best[name] for name in kind.score_names if name in best} | {
            "main": main, "history": {f"val_{main}": [scores[main] for scores in history]}}, file)


def train_epochs(model, forward, loss_of, batches, epochs, batch_size, learning_rate, dtype, seed):
    """Trains what `make_model` returned; yields the number of each epoch, from 0, after it."""
    optimizer, schedule = make_optimizer(model, learning_rate, batches.steps(batch_size) * epochs)
    for epoch in range(epochs):
        model.train()
        for inputs, targets, *_ in batches.training_dataset(batch_size, seed, epoch).as_numpy_iterator():
            with torch.autocast("cpu", enabled=dtype == "mixed_bfloat16"):
                loss = loss_of(forward(inputs), keras.tree.map_structure(torch.tensor, targets))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        model.eval()
        yield epoch


def make_optimizer(model, learning_rate, steps):
    """Returns AdamW and its schedule with warm-up. Biases and norms have no weight decay."""
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        (plain if name.endswith("bias") or "LayerNorm" in name else decayed).append(parameter)
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": WEIGHT_DECAY},
                                   {"params": plain, "weight_decay": 0.0}], lr=learning_rate, eps=EPSILON)
    return optimizer, transformers.get_linear_schedule_with_warmup(optimizer, int(steps * WARMUP), steps)
