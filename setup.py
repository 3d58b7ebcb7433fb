import pathlib
import re

from setuptools import setup

HERE = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "keras_bert/__init__.py").read_text())[1]

# tensorflow-text has no wheels for Linux on arm64.
TEXT = ["tensorflow-text; sys_platform != 'linux' or platform_machine != 'aarch64'"]
# tensorflow-hub imports pkg_resources, which setuptools 81 announces to drop and 82 drops.
HUB = ["tensorflow-hub>=0.16.1", "tf-keras", "setuptools<81", "huggingface_hub>=1"]
# The Model Garden's newest release works with TensorFlow 2.20 alone; unpinned, pip tries versions that do not build.
GARDEN = ["tf-models-official==2.20.*", "tensorflow==2.20.*", "tensorflow-text==2.20.*", "tf-keras==2.20.*"]
# Pictures of a fine-tuned model; 3.9 is the first for NumPy 2.
REPORT = ["matplotlib>=3.9", "tensorboard"]
# What tests and benchmarks compare with. On Linux, PyTorch's wheel on the index brings gigabytes of CUDA libraries that
# nothing here uses; its wheel for CPUs is enough.
PEERS = [*GARDEN, "torch==2.13.0", "transformers>=5", "sentence-transformers", "datasets", "keras-hub", "jax"]
# Other runtimes to measure the speed beside (benchmarks).
BENCH = ["onnxruntime", "openvino", "onnx", "onnxscript"]
# A server of exports. The messages of gRPC are those of tensorflow-serving-api, which TensorFlow's own version must
# read; without them, it serves HTTP alone.
SERVE = ["starlette", "pydantic-core", "uvicorn", "uvloop", "httptools", "orjson", "prometheus-client"]
SERVE_GRPC = [*SERVE, "grpcio", "grpcio-health-checking", "tensorflow-serving-api"]
# Ray Data and Ray Serve (examples/ray_data.py, examples/ray_serve.py).
RAY = ["ray[data,serve]>=2.60"]
# Other engines (examples/other_engines.py).
ONNX = ["tf2onnx>=1.17", "onnxruntime"]
OPENVINO = ["openvino"]
# TensorFlow's small runtime, for `keras_bert.LiteModel`.
LITERT = ["ai-edge-litert"]
# An index of vectors (examples/semantic_search.py).
SEARCH = ["faiss-cpu"]
# A search for settings (examples/search_settings.py).
TUNE = ["optuna"]
# The scores of tasks, and finetune with few_shot.
TASKS = ["scipy", "seqeval", "scikit-learn"]
# To run examples/intent_classification.ipynb.
NOTEBOOK = ["ipykernel", "nbclient", "nbformat"]
# To make pretraining data at scale, and of Parquet files.
BEAM = ["apache-beam>=2.77"]
PARQUET = ["pyarrow"]
# What `make test` and `make test-slow` need: tools (those of the documentation are in docs/requirements.txt), and every
# extra that runs without another framework. Selenium drives Chromium, for the tests of the server's page.
TEST = ["pytest", "pytest-xdist", "hypothesis", "build", "ruff", "mypy", "pandas", "jsonschema", "selenium",
        *TEXT, *HUB, *REPORT, *TASKS, *PARQUET, *SERVE_GRPC, *LITERT, *NOTEBOOK, *TUNE]

setup(
    name="keras-bert-hub",
    version=VERSION,
    description="BERT for TensorFlow and Keras: fine-tune, export as a Hub SavedModel, serve",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The keras-bert-hub authors",
    # No url or project_urls: the project has no public address yet.
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.14",
    packages=[
        "keras_bert", "keras_bert.commands", "keras_bert.convert", "keras_bert.data", "keras_bert.export",
        "keras_bert.files", "keras_bert.inference", "keras_bert.integrations", "keras_bert.kernels",
        "keras_bert.layers", "keras_bert.models", "keras_bert.pretraining", "keras_bert.serving",
        "keras_bert.tasks", "keras_bert.text", "keras_bert.training", "keras_bert.weights",
    ],
    package_data={"keras_bert": ["py.typed", "__init__.pyi"], "keras_bert.files": ["*.toml"],
                  "keras_bert.serving": ["openapi.json", "page/*"], "keras_bert.text": ["*.txt"],
                  "keras_bert.training": ["model_card.md"]},
    package_dir={"keras_bert.export": "export"},
    install_requires=["tensorflow>=2.20,<2.22", "keras>=3.12,<3.16", "absl-py", "tokenizers", "safetensors"],
    extras_require={
        "text": TEXT,
        "hub": HUB,
        "garden": GARDEN,
        "report": REPORT,
        "tasks": TASKS,
        "beam": BEAM,
        "parquet": PARQUET,
        "serve": SERVE,
        "serve-grpc": SERVE_GRPC,
        "onnx": ONNX,
        "openvino": OPENVINO,
        "litert": LITERT,
        "search": SEARCH,
        "tune": TUNE,
        "ray": RAY,
        "all": [*TEXT, *HUB, *REPORT, *TASKS, *PARQUET, *SERVE_GRPC, *LITERT],
        "notebook": [*NOTEBOOK, *HUB, *REPORT],
        "bench": BENCH,
        "test": TEST,
        "peers": PEERS,
        "dev": [*TEST, *PEERS, *BEAM],
    },
    entry_points={"console_scripts": ["keras-bert = keras_bert.cli:main"]},
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
