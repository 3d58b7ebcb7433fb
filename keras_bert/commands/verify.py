"""`keras-bert verify`."""

import dataclasses
import json
from typing import Literal

from keras_bert.errors import InputError
from keras_bert.files.paths import check_readable

EXAMPLE = "keras-bert verify encoder"


def run(*path: str, output_format: Literal["text", "json"] = "text") -> None:
    """Check that an export is undamaged and fulfils the contract of its kind.

    Args:
        path: SavedModel, or folder of export litert.
        output_format: One line per check, or one JSON list.
    """
    if len(path) != 1:
        raise InputError(f"verify needs the path of one export; got {len(path)} paths")
    check_readable(path[0])
    from keras_bert.export.checking import FAILED, verify_litert
    from keras_bert.files.digests import check_files
    from keras_bert.litert import is_litert

    if is_litert(path[0]):
        from keras_bert.inference.lite_model import LiteModel

        check_files(path[0], added=True)  # before the model file is run
        results = verify_litert(LiteModel.load(path[0]), path[0])
    else:
        from keras_bert.export.verify import verify

        results = verify(path[0])
    if output_format == "json":
        print(json.dumps([dataclasses.asdict(result) for result in results], indent=2))
    else:
        for result in results:
            print(f"{result.line:2} {result.status:14} {result.rule}{result.seen and f': {result.seen}'}")
    if failed := [result for result in results if result.status == FAILED]:
        raise InputError(f"{path[0]}: {len(failed)} of {len(results)} checks failed")
