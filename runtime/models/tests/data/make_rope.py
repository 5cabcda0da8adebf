"""Inverse frequencies and attention factors of every rope scaling, by Hugging Face transformers.

Run: pip install torch transformers==5.23.0 && python make_rope.py   (writes rope.json; imports nothing of Halyard)
"""

import json
import pathlib

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CASES = {
    "linear": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_theta": 500000.0,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1000000.0},
    "yarn_mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.707,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "rope_theta": 10000.0,
    },
}


def main():
    golden = {}
    for name, parameters in CASES.items():
        config = LlamaConfig(
            hidden_size=512,
            num_attention_heads=4,
            num_hidden_layers=1,
            max_position_embeddings=32768,
            rope_parameters=dict(parameters),
        )
        frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")
        golden[name] = {
            "parameters": parameters,
            "inverse_frequencies": [float(f) for f in frequencies],
            "attention_factor": float(factor),
        }
    pathlib.Path(__file__).with_name("rope.json").write_text(json.dumps(golden, indent=1) + "\n")


main()
