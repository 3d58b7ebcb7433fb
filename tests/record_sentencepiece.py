"""Records two small models that sentencepiece trains on real texts, and what it computes with them.

Run in an environment with sentencepiece (`make peers`):

    python tests/record_sentencepiece.py

It replaces tests/data/unigram, which tests/test_unigram.py reads:

    nfkc.model       with sentencepiece's own normalization, and special tokens as KoBERT has them
    identity.model   without normalization, and with sentencepiece's own special tokens
    texts.json       this command, the version, the texts; and for each model the normalized texts, the ids, and the
                     numbers of the texts whose best pieces are not unique, because other ones have the same sum
"""

import json
import pathlib
import unicodedata

import sentencepiece
from test_rules import hard_texts

REAL = pathlib.Path(__file__).parent / "data/real"
FOLDER = pathlib.Path(__file__).parent / "data/unigram"
MODELS = {
    "nfkc": {"vocab_size": 2000, "character_coverage": 0.98, "unk_piece": "[UNK]", "pad_id": 1, "pad_piece": "[PAD]",
             "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]},
    "identity": {"vocab_size": 600, "normalization_rule_name": "identity", "character_coverage": 0.98},
}
RUNS = [unit * count for unit in "ㅋㅠ.!-가aㅏ~…" for count in (2, 3, 4, 5, 11)]
SPACES = [form.format(chr(code)) for form in ("{0}날씨{0}{0}the{0}", "a{0} b", "{0}") for code in (
    *range(9, 14), *range(28, 33), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)]
NAMES = ["[CLS] 날씨 [SEP]", "<s>the</s>", "<unk> [UNK]", "a[MASK]b <mask>", "<pad>[PAD]", "▁날씨 ▁ the▁a", "a▁▁b"]
ODD = ["", "a\0b", "\0", "날씨\0 the", "\ufffd", "a\ufffdb", "\ufeff날씨", "the\u200bnow", "각\u1100\u1161\u11a8",
       "㈜한국 ㎏", "Ⅳ ½ x² ＡＢＣ ﾊﾛｰ", "①②③", "Crème brûlée", "♥ 🎵👩\u200d👩\u200d👧!", "東京で音楽", "~ ～ 〜",
       "\ufdd0\ufdd1 a"]


def lines(*folders):
    paths = sorted(path for folder in folders for path in (REAL / folder).rglob("*") if path.suffix in (".txt", ".tsv"))
    texts = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return [text for text in texts if 8 < len(text) < 120]


def record():
    FOLDER.mkdir(exist_ok=True)
    korean, english = lines("corpora/ko", "ko", "intent/intent176"), lines("corpora/en", "glue", "intent")
    some = [(texts[::len(texts) // count], form) for texts, count, form in (
        (korean, 120, "NFC"), (english, 80, "NFC"), (korean[7:], 40, "NFD"))]
    texts = [unicodedata.normalize(form, text) for part, form in some for text in part] + RUNS + SPACES + NAMES + ODD
    texts += hard_texts(130, seed=3)
    recorded = {"command": "python tests/record_sentencepiece.py", "version": sentencepiece.__version__, "texts": texts}
    for name, options in MODELS.items():
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(korean + english), model_prefix=str(FOLDER / name), num_threads=1,
            minloglevel=2, **options)
        (FOLDER / f"{name}.vocab").unlink()
        model = sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / f"{name}.model"))
        best = [model.nbest_encode(text, nbest_size=2, return_type="proto").nbests for text in texts]
        ties = [number for number, found in enumerate(best)
                if len(found) > 1 and abs(found[0].score - found[1].score) < 1e-4]
        recorded[name] = {"normalized": model.normalize(texts), "ids": model.encode(texts), "ties": ties}
    (FOLDER / "texts.json").write_text(json.dumps(recorded, ensure_ascii=False, separators=(",", ":")) + "\n",
                                       encoding="utf-8")


if __name__ == "__main__":
    record()
