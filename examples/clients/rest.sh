#!/bin/sh
# Asks a model of `keras-bert serve`, or of TensorFlow Serving, over REST; the request is JSON on standard input.
#
#     echo '{"instances": ["play some music", "lights off"]}' | TOKEN=… rest.sh http://localhost:8501 intents
set -eu
curl --silent --show-error --fail-with-body ${TOKEN:+-H "Authorization: Bearer $TOKEN"} \
    --data-binary @- "$1/v1/models/$2:predict"
