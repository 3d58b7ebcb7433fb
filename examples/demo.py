"""From real text to a Hub SavedModel: fine-tunes MiniLM on demo-176 (`intents`), exports the encoder, loads the
export with `hub.KerasLayer` and with `HubLayer`, and asks the model five questions. Under five minutes on 2 cores.

    python examples/demo.py [FOLDER]        (default: demo)
"""

import pathlib
import sys
import time
import warnings

from keras_bert import startup

startup.quiet_tensorflow()
warnings.filterwarnings("ignore", "pkg_resources is deprecated")  # by tensorflow_hub

import numpy as np
import tensorflow_hub as hub

import keras_bert

from intents.build import build

QUESTIONS = [
    "could you wake me at a quarter to six tomorrow",
    "how much do i have left in my savings account",
    "will i need an umbrella on saturday",
    "my suitcase never showed up on the carousel",
    "make the bedroom lamp a bit less bright",
]


def main(folder):
    started = time.monotonic()
    print(f"1. The data: {build(folder / 'data')} texts of 176 intents (demo-176) in {folder / 'data'}")

    print("2. Fine-tuning MiniLM (keras-bert finetune does the same)")
    model = keras_bert.finetune(
        folder / "data/train.tsv", folder / "data/valid.tsv", model="minilm", output=folder / "model", epochs=4,
        learning_rate=4e-4, overwrite=True)
    print("   Its model card and pictures:")
    for path in sorted(folder.glob("model/*.md")) + sorted(folder.glob("model/*.png")):
        print(f"   {path}")

    print(f"3. Exporting its encoder to {folder / 'encoder'} (keras-bert export)")
    keras_bert.export_encoder(model.model.bert, folder / "encoder", model.tokenizer, overwrite=True)

    print("4. Loading the export twice")
    tokens = model.tokenizer(QUESTIONS)
    inputs = [tokens["input_word_ids"], tokens["input_mask"], tokens["segment_ids"]]
    source, _ = model.model.bert(inputs)
    for name, layer in (("hub.KerasLayer", hub.KerasLayer), ("keras_bert.HubLayer", keras_bert.HubLayer)):
        pooled, _ = layer(str(folder / "encoder"), trainable=True)(inputs)
        difference = np.abs(np.asarray(pooled) - np.asarray(source)).max()
        print(f"   {name:20} pooled_output {pooled.shape}, largest difference from the model {difference:.1e}")
        assert difference < 1e-5

    print("5. Five questions (keras-bert predict)")
    for question, answer in zip(QUESTIONS, model.predict(QUESTIONS)):
        print(f"   {question:55} {answer.label} ({answer.score:.0%})")
    print(f"Done in {time.monotonic() - started:.0f} s. Ask your own:\n"
          f'   .venv/bin/keras-bert predict --model={folder / "model"} "what can i cook with two eggs"')


if __name__ == "__main__":
    try:
        main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
    except keras_bert.InputError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt as error:
        print("demo: interrupted", file=sys.stderr)
        sys.exit(128 + getattr(error, "signal", 2))
