"""Asks a model of `keras-bert serve`, or of TensorFlow Serving, over REST, with the standard library alone.

    TOKEN=… python rest.py http://localhost:8501 intents "play some music" "lights off"
    python rest.py http://localhost:8501 pairs '{"text": "lights off", "text_pair": "turn the lamp off"}'
"""

import http.client
import json
import os
import sys
import urllib.error
import urllib.request


def predict(url, model, instances, token=""):
    """The predictions for a list of texts or, where a model takes more than one, of dicts of names to texts."""
    headers = {"Authorization": f"Bearer {token}".encode()} if token else {}
    request = urllib.request.Request(
        f"{url}/v1/models/{model}:predict", json.dumps({"instances": instances}).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["predictions"]


def main(url, model, *texts):
    instances = [json.loads(text) if text.startswith("{") else text for text in texts]
    try:
        for prediction in predict(url, model, instances, os.environ.get("TOKEN", "")):
            print(json.dumps(prediction, ensure_ascii=False))
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code}: {error.read().decode(errors='replace')}")
    except urllib.error.URLError as error:
        sys.exit(f"{url}: {error.reason}")
    except (http.client.HTTPException, ValueError) as error:
        sys.exit(f"{url}: not an answer of the REST interface: {error}")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(f"usage: {sys.argv[0]} URL MODEL TEXT ...")
    main(*sys.argv[1:])
